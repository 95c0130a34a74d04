//! Time stamps as JavaScript's `toISOString` writes them: ISO 8601, UTC, milliseconds, `Z`.

use time::format_description::well_known::Iso8601;
use time::{Date, OffsetDateTime};

/// Of a stamp in our own form.
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
    parse_own_form(text.as_bytes()).or_else(|| parse_any_form(text))
}

/// The one form that we and the original tool write. Every operation looks at every stamp, and
/// the general parser would take longer than all the rest.
pub(crate) fn parse_own_form(text: &[u8]) -> Option<i64> {
    let text: &[u8; LENGTH] = text.try_into().ok()?;
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
    let (year, month, day) = (number(0, 4)?, number(5, 7)?, number(8, 10)?);
    let days = days_before(year, usize::try_from(month).ok()?)? + day - 1;
    if day < 1 || day > days_of_month(year, month) {
        return None;
    }
    Some(days * DAY_MS + ((hour * 60 + minute) * 60 + second) * 1000 + number(20, 23)?)
}

/// Days from the Unix epoch to the first of a month, in the Gregorian calendar.
fn days_before(year: i64, month: usize) -> Option<i64> {
    const BEFORE: [i64; 12] = [0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334];
    let before = BEFORE.get(month.checked_sub(1)?)?;
    // Leap days up to the end of the last year, and from the beginning of year 0 to 1970.
    let last = year - 1;
    let leap_days = last.div_euclid(4) - last.div_euclid(100) + last.div_euclid(400) - 477;
    let this_year = i64::from(month > 2 && is_leap(year));
    Some((year - 1970) * 365 + leap_days + before + this_year)
}

fn days_of_month(year: i64, month: i64) -> i64 {
    match month {
        2 if is_leap(year) => 29,
        2 => 28,
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

fn is_leap(year: i64) -> bool {
    year % 4 == 0 && (year % 100 != 0 || year % 400 == 0)
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
    fn every_day_is_where_the_calendar_has_it() {
        let (first, last) = (-719_528i64, 2_932_896);
        for day in (first..=last).step_by(53).chain([last]) {
            let date = Date::from_julian_day((day + UNIX_EPOCH_JULIAN) as i32).unwrap();
            let (year, month, day_of_month) = (date.year(), u8::from(date.month()), date.day());
            let text = format!("{year:04}-{month:02}-{day_of_month:02}T00:00:00.000Z");
            assert_eq!(
                parse_own_form(text.as_bytes()),
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
