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
#[inline]
pub(crate) fn parse_own_form(text: &[u8]) -> Option<i64> {
    let ([date, time, rest], []) = text.as_chunks::<8>() else {
        return None;
    };
    let date = pairs(date, b"0000-00-")?;
    let time = pairs(time, b"00T00:00")?;
    let rest = pairs(rest, b":00.000Z")?;
    let pair = |pairs: u64, at: u32| (pairs >> (8 * at)) as u32 & 0xff;
    let (year, month, day) = (
        pair(date, 0) * 100 + pair(date, 2),
        pair(date, 5),
        pair(time, 0),
    );
    let (hour, minute, second) = (pair(time, 3), pair(time, 6), pair(rest, 1));
    // The last pair is one digit and the mark after it, which counts as zero.
    let ms = pair(rest, 4) * 10 + pair(rest, 6) / 10;
    if day < 1 || day > days_of_month(year, month)? || hour > 23 || minute > 59 || second > 59 {
        return None;
    }
    let days = days_before(year, month)? + i64::from(day - 1);
    let ms = ((hour * 60 + minute) * 60 + second) * 1000 + ms;
    Some(days * DAY_MS + i64::from(ms))
}

/// The number of two digits that begins at each byte; none if `text` has no digit where `form`
/// has a zero, or is not like `form` elsewhere. All eight at a time.
#[inline(always)] // For a known form, its marks are known too.
fn pairs(text: &[u8; 8], form: &[u8; 8]) -> Option<u64> {
    const ONES: u64 = u64::from_ne_bytes([1; 8]);
    let marks = u64::from_le_bytes(form.map(|byte| if byte == b'0' { 0 } else { 0xff }));
    let digits = u64::from_le_bytes(*text) ^ u64::from_le_bytes(*form);
    // Adding this to a byte above nine sets its top bit, if that was not set before.
    let above_nine = (digits.wrapping_add(ONES * 0x76) | digits) & (ONES << 7);
    (digits & marks == 0 && above_nine == 0).then(|| digits * 10 + (digits >> 8))
}

/// Days from the Unix epoch to the first of a month, in the Gregorian calendar.
#[inline]
fn days_before(year: u32, month: u32) -> Option<i64> {
    const BEFORE: [u32; 12] = [0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334];
    let before = BEFORE.get(month.checked_sub(1)? as usize)?;
    // 400 years and their 97 leap days more, to stay above zero.
    let last = year + 399;
    let leap_days = last / 4 - last / 100 + last / 400 + u32::from(month > 2 && is_leap(year));
    // Those before 1970, counted in the same way, are 477 + 97.
    Some((i64::from(year) - 1970) * 365 + i64::from(leap_days + before) - (477 + 97))
}

#[inline]
fn days_of_month(year: u32, month: u32) -> Option<u32> {
    const DAYS: [u32; 12] = [31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    let days = DAYS.get(month.checked_sub(1)? as usize)?;
    Some(days + u32::from(month == 2 && is_leap(year)))
}

#[inline]
fn is_leap(year: u32) -> bool {
    year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400))
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
