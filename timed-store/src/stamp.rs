//! Time stamps as JavaScript's `toISOString` writes them: ISO 8601, UTC, milliseconds, `Z`.

use time::format_description::well_known::Iso8601;
use time::{Date, Month, OffsetDateTime};

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
    parse_own_form(text.as_bytes()).or_else(|| parse_any_form(text))
}

/// The one form that we and the original tool write. Every operation looks at every stamp, and
/// this takes a tenth of the time of the general parser.
fn parse_own_form(text: &[u8]) -> Option<i64> {
    let text: &[u8; 24] = text.try_into().ok()?;
    let marks = [
        (4, b'-'),
        (7, b'-'),
        (10, b'T'),
        (13, b':'),
        (16, b':'),
        (19, b'.'),
        (23, b'Z'),
    ];
    if marks.iter().any(|&(at, mark)| text[at] != mark) {
        return None;
    }
    let number = |from: usize, to: usize| {
        text[from..to].iter().try_fold(0i64, |sum, byte| {
            byte.is_ascii_digit()
                .then(|| sum * 10 + i64::from(byte - b'0'))
        })
    };
    let (hour, minute, second) = (number(11, 13)?, number(14, 16)?, number(17, 19)?);
    if hour > 23 || minute > 59 || second > 59 {
        return None;
    }
    let month = Month::try_from(u8::try_from(number(5, 7)?).ok()?).ok()?;
    let day = u8::try_from(number(8, 10)?).ok()?;
    let date = Date::from_calendar_date(i32::try_from(number(0, 4)?).ok()?, month, day).ok()?;
    let days = i64::from(date.to_julian_day()) - UNIX_EPOCH_JULIAN;
    Some(days * DAY_MS + ((hour * 60 + minute) * 60 + second) * 1000 + number(20, 23)?)
}

fn parse_any_form(text: &str) -> Option<i64> {
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
    fn the_own_form_is_read() {
        check("1970-01-01T00:00:00.000Z", Some(0));
        check("2025-08-18T10:20:30.456Z", Some(1_755_512_430_456));
        check("2024-02-29T23:59:59.999Z", Some(1_709_251_199_999));
        check("1969-12-31T23:59:59.999Z", Some(-1));
    }

    #[test]
    fn other_iso_8601_forms_are_read() {
        check("2025-08-18T10:20:30Z", Some(1_755_512_430_000));
        check("2025-08-18T19:20:30.456+09:00", Some(1_755_512_430_456));
        check("2025-08-18T10:20:30.456789Z", Some(1_755_512_430_456));
    }

    #[test]
    fn nonsense_is_not_a_time() {
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
    fn what_is_written_is_read_back() {
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
