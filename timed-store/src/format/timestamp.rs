//! Timestamps as JavaScript's `toISOString` writes them: ISO 8601, UTC, milliseconds, `Z`.

use time::format_description::well_known::Iso8601;
use time::{Date, Month, OffsetDateTime};

/// Bytes of a timestamp in the form that this crate writes.
pub(crate) const LENGTH: usize = 24;

const DAY_MS: i64 = 24 * 60 * 60 * 1000;
const UNIX_EPOCH_JULIAN: i64 = 2_440_588;

pub(crate) fn format(unix_ms: i64) -> String {
    let day = i32::try_from(unix_ms.div_euclid(DAY_MS) + UNIX_EPOCH_JULIAN).unwrap_or(i32::MAX);
    // Only a clock that is thousands of years off leaves the range of four-digit years.
    let date = Date::from_julian_day(day).unwrap_or(Date::MAX);
    let ms = unix_ms.rem_euclid(DAY_MS);
    format!(
        "{:04}-{:02}-{:02}T{:02}:{:02}:{:02}.{:03}Z",
        date.year(),
        u8::from(date.month()),
        date.day(),
        ms / 3_600_000,
        ms / 60_000 % 60,
        ms / 1000 % 60,
        ms % 1000
    )
}

pub(crate) fn parse(text: &str) -> Option<i64> {
    parse_compact_form(text.as_bytes()).or_else(|| parse_iso_8601(text))
}

/// Parses the one form that this crate and the original tool write. Every operation checks every
/// timestamp, and the general parser takes longer than the rest of the operation.
pub(crate) fn parse_compact_form(text: &[u8]) -> Option<i64> {
    #[rustfmt::skip]
    let &[y1, y2, y3, y4, b'-', m1, m2, b'-', d1, d2, b'T',
          h1, h2, b':', n1, n2, b':', s1, s2, b'.', f1, f2, f3, b'Z'] = text
    else {
        return None;
    };
    let (hour, minute, second) = (number([h1, h2])?, number([n1, n2])?, number([s1, s2])?);
    if hour > 23 || minute > 59 || second > 59 {
        return None;
    }
    let month = Month::try_from(u8::try_from(number([m1, m2])?).ok()?).ok()?;
    let day = u8::try_from(number([d1, d2])?).ok()?;
    let date = Date::from_calendar_date(number([y1, y2, y3, y4])?, month, day).ok()?;
    let days = i64::from(date.to_julian_day()) - UNIX_EPOCH_JULIAN;
    let ms = ((hour * 60 + minute) * 60 + second) * 1000 + number([f1, f2, f3])?;
    Some(days * DAY_MS + i64::from(ms))
}

fn number<const DIGITS: usize>(digits: [u8; DIGITS]) -> Option<i32> {
    digits.iter().try_fold(0, |number, digit| match digit {
        b'0'..=b'9' => Some(number * 10 + i32::from(digit - b'0')),
        _ => None,
    })
}

fn parse_iso_8601(text: &str) -> Option<i64> {
    let time = OffsetDateTime::parse(text, &Iso8601::DEFAULT).ok()?;
    i64::try_from(time.unix_timestamp_nanos().div_euclid(1_000_000)).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, expected: Option<i64>) {
        assert_eq!(parse(text), expected, "{text}");
    }

    #[test]
    fn the_compact_form_is_parsed() {
        check("1970-01-01T00:00:00.000Z", Some(0));
        check("2025-08-18T10:20:30.456Z", Some(1_755_512_430_456));
        check("2024-02-29T23:59:59.999Z", Some(1_709_251_199_999));
        check("1969-12-31T23:59:59.999Z", Some(-1));
    }

    #[test]
    fn other_iso_8601_forms_are_parsed() {
        check("2025-08-18T10:20:30Z", Some(1_755_512_430_000));
        check("2025-08-18T19:20:30.456+09:00", Some(1_755_512_430_456));
        check("2025-08-18T10:20:30.456789Z", Some(1_755_512_430_456));
    }

    #[test]
    fn invalid_times_are_refused() {
        for text in [
            "",
            "now",
            "2025-02-30T00:00:00.000Z",
            "2025-08-18T24:20:30.456Z",
            "2025-08-18",
        ] {
            check(text, None);
        }
        check("2025-08-18T10:20:3x.456Z", None);
        check("2025-08-18T10:61:30.456Z", None);
    }

    #[test]
    fn every_day_agrees_with_the_calendar() {
        let (first, last) = (-719_528i64, 2_932_896);
        for day in (first..=last).step_by(53).chain([last]) {
            let date = Date::from_julian_day((day + UNIX_EPOCH_JULIAN) as i32).unwrap();
            let (year, month, day_of_month) = (date.year(), u8::from(date.month()), date.day());
            let text = format!("{year:04}-{month:02}-{day_of_month:02}T00:00:00.000Z");
            assert_eq!(
                parse_compact_form(text.as_bytes()),
                Some(day * DAY_MS),
                "{text}"
            );
        }
        for text in [
            "2025-02-29",
            "1900-02-29",
            "2025-04-31",
            "2025-00-10",
            "2025-13-10",
            "2025-01-00",
            "2025-01-32",
        ] {
            assert_eq!(parse(&format!("{text}T00:00:00.000Z")), None, "{text}");
        }
    }

    #[test]
    fn formatted_timestamps_parse_back() {
        for ms in [
            0,
            -1,
            1,
            1_755_512_430_456,
            1_709_251_199_999,
            253_402_300_799_999,
        ] {
            assert_eq!(format(ms).len(), 24);
            check(&format(ms), Some(ms));
        }
    }
}
