//! The tokens of images, documents and opaque data, by the published formulas of the providers.
//!
//! The formulas are those of the current models (November 2026), at the default resolution:
//!
//! | provider | image | page of a PDF |
//! |---|---|---|
//! | Anthropic | patches of 28 by 28 pixels, at most 4,784 | 3,000: text and image |
//! | OpenAI | 1.2 for each patch of 32 by 32 pixels, at most 12,000 patches | 3,000: text and image |
//! | Gemini | 1,120 | 560 |
//!
//! Older models of a provider use fewer tokens for large images. A size that cannot be read counts as
//! 1,024 by 1,024 pixels, which is what screenshots and photos are scaled to by most programs.

use crate::conversation::{Part, Provider, Source};

const UNKNOWN_SIZE: (u32, u32) = (1_024, 1_024);

/// Bytes of a page of a PDF whose pages cannot be counted.
const BYTES_PER_PAGE: usize = 50_000;

/// The tokens of a part that is not a text. Without a provider, the largest number of all.
pub(super) fn media_tokens(provider: Option<Provider>, part: &Part) -> usize {
    match part {
        Part::Image { source, .. } => {
            let (width, height) = size(source);
            most(provider, |provider| image_tokens(provider, width, height))
        }
        Part::Document { source, .. } => match source {
            // No tokenizer here: about four bytes a token, as in most languages.
            Source::Text { text } => text.len().div_ceil(4),
            Source::Base64 { media_type, data } if media_type.starts_with("text/") => {
                (data.len() / 4 * 3).div_ceil(4)
            }
            source => {
                let pages = pages(source);
                most(provider, |provider| pages * page_tokens(provider))
            }
        },
        Part::Reasoning { signature, .. } => {
            signature.as_deref().map_or(0, |data| opaque(data.len()))
        }
        Part::Provider { data, .. } => opaque(data.to_string().len()).max(1),
        Part::Text { .. } | Part::Call { .. } | Part::Unknown(_) => 0,
    }
}

fn most(provider: Option<Provider>, count: impl Fn(Provider) -> usize) -> usize {
    match provider {
        Some(provider) => count(provider),
        None => Provider::ALL.into_iter().map(count).max().unwrap_or(0),
    }
}

fn image_tokens(provider: Provider, width: u32, height: u32) -> usize {
    let patches = |pixels: u32| width.div_ceil(pixels) as usize * height.div_ceil(pixels) as usize;
    match provider {
        Provider::Anthropic => patches(28).min(4_784),
        Provider::OpenAiChat | Provider::OpenAiResponses => {
            (patches(32).min(12_000) * 12).div_ceil(10)
        }
        Provider::Gemini => 1_120,
    }
}

fn page_tokens(provider: Provider) -> usize {
    match provider {
        Provider::Gemini => 560,
        _ => 3_000,
    }
}

/// Data that only a provider can read: base64 of encrypted text with a header, four bytes a token.
fn opaque(encoded: usize) -> usize {
    (encoded / 4 * 3).saturating_sub(650).div_ceil(4)
}

fn pages(source: &Source) -> usize {
    let Source::Base64 { data, .. } = source else {
        return 1;
    };
    let bytes = decode_base64(data);
    let name: &[u8] = b"/Type";
    let is_page = |rest: &[u8]| {
        let rest = rest.strip_prefix(name)?;
        let rest = rest.strip_prefix(b" ").unwrap_or(rest);
        let after = rest.strip_prefix(b"/Page")?;
        (!after.first().is_some_and(u8::is_ascii_alphanumeric)).then_some(())
    };
    let starts = bytes.iter().enumerate().filter(|(_, byte)| **byte == b'/');
    let counted = starts.filter_map(|(at, _)| is_page(&bytes[at..])).count();
    // Pages in compressed streams are not found.
    counted.max(bytes.len() / BYTES_PER_PAGE).max(1)
}

/// Width and height of an image.
fn size(source: &Source) -> (u32, u32) {
    let Source::Base64 { data, .. } = source else {
        return UNKNOWN_SIZE;
    };
    // All headers but those of JPEG are in the first bytes.
    let start = decode_base64(data.get(..64).unwrap_or(data));
    let found = if start.starts_with(&[0xff, 0xd8]) {
        // Behind the camera's data, which can contain a preview.
        jpeg_size(&decode_base64(data.get(..1 << 20).unwrap_or(data)))
    } else {
        header_size(&start)
    };
    let known = found.filter(|(width, height)| *width > 0 && *height > 0);
    known.unwrap_or(UNKNOWN_SIZE)
}

fn header_size(bytes: &[u8]) -> Option<(u32, u32)> {
    let little = |at: usize, count: usize| {
        let bytes = bytes.get(at..at + count)?;
        Some(
            bytes
                .iter()
                .rev()
                .fold(0, |n, byte| n << 8 | u32::from(*byte)),
        )
    };
    if bytes.starts_with(b"\x89PNG\r\n\x1a\n") {
        return Some((big(bytes, 16, 4)?, big(bytes, 20, 4)?));
    }
    if bytes.starts_with(b"GIF8") {
        return Some((little(6, 2)?, little(8, 2)?));
    }
    if !bytes.starts_with(b"RIFF") || bytes.get(8..12)? != b"WEBP" {
        return None;
    }
    match bytes.get(12..16)? {
        b"VP8 " => Some((little(26, 2)? & 0x3fff, little(28, 2)? & 0x3fff)),
        b"VP8L" => {
            let bits = little(21, 4)?;
            Some(((bits & 0x3fff) + 1, (bits >> 14 & 0x3fff) + 1))
        }
        b"VP8X" => Some((little(24, 3)? + 1, little(27, 3)? + 1)),
        _ => None,
    }
}

/// Goes from segment to segment until the one that starts a frame.
fn jpeg_size(bytes: &[u8]) -> Option<(u32, u32)> {
    let mut at = 2;
    loop {
        while big(bytes, at, 2)? == 0xffff {
            at += 1;
        }
        let marker = big(bytes, at, 2)?;
        // C4, C8 and CC are tables.
        if (0xffc0..=0xffcf).contains(&marker) && ![0xffc4, 0xffc8, 0xffcc].contains(&marker) {
            return Some((big(bytes, at + 7, 2)?, big(bytes, at + 5, 2)?));
        }
        at += 2 + big(bytes, at + 2, 2)?.max(2) as usize;
    }
}

fn big(bytes: &[u8], at: usize, count: usize) -> Option<u32> {
    let bytes = bytes.get(at..at + count)?;
    Some(bytes.iter().fold(0, |n, byte| n << 8 | u32::from(*byte)))
}

/// Decodes base64 of either alphabet. Characters outside of it are skipped, as the providers do.
pub(crate) fn decode_base64(data: &str) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(data.len() / 4 * 3);
    let (mut bits, mut count) = (0_u32, 0);
    for byte in data.bytes() {
        let value = match byte {
            b'A'..=b'Z' => byte - b'A',
            b'a'..=b'z' => byte - b'a' + 26,
            b'0'..=b'9' => byte - b'0' + 52,
            b'+' | b'-' => 62,
            b'/' | b'_' => 63,
            _ => continue,
        };
        bits = bits << 6 | u32::from(value);
        count += 6;
        if count >= 8 {
            count -= 8;
            bytes.push((bits >> count & 0xff) as u8);
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn encode(bytes: &[u8]) -> String {
        const ALPHABET: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
        let mut text = String::new();
        for chunk in bytes.chunks(3) {
            let bits = chunk
                .iter()
                .fold(0_u32, |n, byte| n << 8 | u32::from(*byte));
            let bits = bits << (8 * (3 - chunk.len()));
            for place in 0..4 {
                let value = bits >> (18 - 6 * place) & 0x3f;
                text.push(if place <= chunk.len() {
                    ALPHABET[value as usize] as char
                } else {
                    '='
                });
            }
        }
        text
    }

    #[track_caller]
    fn check_size(bytes: &[u8], expected: (u32, u32)) {
        assert_eq!(size(&Source::base64("image/*", encode(bytes))), expected);
    }

    #[test]
    fn base64_is_decoded() {
        for bytes in [
            &b""[..],
            b"a",
            b"ab",
            b"abc",
            b"\x00\xff\xfe\x80",
            b"\xfb\xef\xbe\xff",
        ] {
            assert_eq!(decode_base64(&encode(bytes)), bytes);
        }
        assert_eq!(decode_base64("-_-_"), decode_base64("+/+/"));
        assert_eq!(decode_base64("YW\nJj"), b"abc");
    }

    #[test]
    fn sizes_are_read_from_the_headers_of_all_formats() {
        check_size(
            b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\x07\x80\0\0\x04\x38\x08",
            (1_920, 1_080),
        );
        check_size(b"GIF89a\x40\x01\xf0\0\0", (320, 240));
        let mut jpeg = b"\xff\xd8\xff\xe1\x03\x02".to_vec();
        jpeg.extend([0; 0x300]);
        jpeg.extend(b"\xff\xff\xc4\0\x03\0\xff\xc2\0\x11\x08\x02\x58\x03\x20\x03");
        check_size(&jpeg, (800, 600));
        check_size(
            b"RIFF\0\0\0\0WEBPVP8 \0\0\0\0\0\0\0\x9d\x01\x2a\x40\x01\xf0\0",
            (320, 240),
        );
        check_size(
            b"RIFF\0\0\0\0WEBPVP8L\0\0\0\0\x2f\x3f\xc1\x3b\0",
            (320, 240),
        );
        check_size(
            b"RIFF\0\0\0\0WEBPVP8X\0\0\0\0\0\0\0\0\x3f\x01\0\xef\0\0",
            (320, 240),
        );
        check_size(b"not an image", UNKNOWN_SIZE);
        check_size(b"\xff\xd8\xff\xe0\xff\xff", UNKNOWN_SIZE);
    }

    #[test]
    fn images_count_as_published() {
        // Measured tokens of single images, without those of the request.
        for (width, height, anthropic, openai) in [
            (256, 256, 100, 77),
            (512, 512, 361, 308),
            (1_024, 1_024, 1_369, 1_229),
            (1_920, 1_080, 2_691, 2_448),
        ] {
            assert_eq!(image_tokens(Provider::Anthropic, width, height), anthropic);
            assert_eq!(image_tokens(Provider::OpenAiChat, width, height), openai);
            assert_eq!(image_tokens(Provider::Gemini, width, height), 1_120);
        }
        assert_eq!(image_tokens(Provider::Anthropic, 8_000, 8_000), 4_784);
        assert_eq!(
            image_tokens(Provider::OpenAiResponses, 9_000, 9_000),
            14_400
        );
    }

    #[test]
    fn pages_are_counted() {
        let pdf = b"%PDF-1.7 /Type /Pages /Type /Page\n/Type/Page>> /Type /PageLabel /Type/Page";
        let source = Source::base64("application/pdf", encode(pdf));
        assert_eq!(pages(&source), 3);
        let part = Part::document(source, "a.pdf");
        assert_eq!(media_tokens(Some(Provider::Gemini), &part), 3 * 560);
        assert_eq!(media_tokens(None, &part), 9_000);
    }
}
