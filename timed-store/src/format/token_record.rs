//! The identity and the last token of a store, which each of its files holds.

/// The identity of a store and the last token that it gave out.
///
/// The lock file has it as two lines, a data file as the member
/// `"timed_store":{"id":"<16 hex digits>","token":<number>}` after `storage`. Every claim writes it
/// to all files, so that tokens grow as long as one of them exists. If all are gone, the next claim
/// makes a new identity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TokenRecord {
    pub(crate) store_id: u64,
    pub(crate) last_token: u64,
}

pub(crate) const KEY: &str = "timed_store";

impl TokenRecord {
    /// The record of a new store. The tokens start at the time, so that they are above those of a
    /// deleted store unless the clock was set back.
    pub(crate) fn new(now_ms: i64) -> Self {
        use std::hash::{BuildHasher, RandomState};
        Self {
            store_id: RandomState::new().hash_one(now_ms),
            last_token: u64::try_from(now_ms).unwrap_or(0),
        }
    }

    pub(crate) fn id_text(store_id: u64) -> String {
        format!("{store_id:016x}")
    }

    /// The member of a data file, with its key.
    pub(crate) fn to_member(self) -> String {
        let (id, token) = (Self::id_text(self.store_id), self.last_token);
        format!("\"{KEY}\":{{\"id\":\"{id}\",\"token\":{token}}}")
    }

    /// Parses the value of the member.
    pub(crate) fn from_json(json: &str) -> Option<Self> {
        #[derive(serde::Deserialize)]
        struct Member<'a> {
            id: &'a str,
            token: u64,
        }
        let member: Member<'_> = serde_json::from_str(json).ok()?;
        Some(Self {
            store_id: parse_id(member.id)?,
            last_token: member.token,
        })
    }
}

pub(crate) fn parse_id(text: &str) -> Option<u64> {
    let is_hex = text.len() == 16 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    u64::from_str_radix(text, 16).ok().filter(|_| is_hex)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_read_back() {
        let record = TokenRecord {
            store_id: 0x2f,
            last_token: 7,
        };
        let member = record.to_member();
        assert_eq!(
            member,
            r#""timed_store":{"id":"000000000000002f","token":7}"#
        );
        let json = member.split_once(':').unwrap().1;
        assert_eq!(TokenRecord::from_json(json), Some(record));
        for json in [
            "{}",
            "[]",
            r#"{"id":"2f","token":7}"#,
            r#"{"id":"+00000000000002f","token":7}"#,
        ] {
            assert_eq!(TokenRecord::from_json(json), None, "{json}");
        }
    }

    #[test]
    fn two_new_stores_have_two_identities() {
        assert_ne!(TokenRecord::new(5).store_id, TokenRecord::new(5).store_id);
        assert_eq!(TokenRecord::new(-5).last_token, 0);
    }
}
