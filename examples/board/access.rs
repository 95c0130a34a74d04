//! Access to the board.

use std::net::SocketAddr;

use uuid::Uuid;

/// The secrets of one server and the names by which it may be addressed.
///
/// Three checks: each one alone can be bypassed.
///
/// - The `Host` header must be one of ours. A page of another site whose name was rebound to
///   127.0.0.1 sends its own name.
/// - The `Origin` header, where there is one, must be ours. A page of another site cannot forge it.
/// - A token proves the user. It is in the fragment of the address, which no browser sends; a POST
///   exchanges it for a cookie that scripts cannot read. Cookies do not know ports, so another
///   server on this machine could be sent the cookie: the page must also send a key that it
///   keeps in the storage of its origin, which does know the port.
pub struct Access {
    token: String,
    cookie: String,
    page_key: String,
    hosts: Vec<String>,
    port: u16,
}

/// The part of a request that decides.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Credentials<'a> {
    pub(super) host: Option<&'a str>,
    pub(super) origin: Option<&'a str>,
    pub(super) cookie: Option<&'a str>,
    pub(super) authorization: Option<&'a str>,
}

/// How a client has proved itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Proof {
    /// The token itself.
    Token,
    /// The cookie of a browser: the page key must follow.
    Cookie,
}

impl Access {
    /// New secrets for a server at this address. It may also be addressed by `hosts`.
    #[must_use]
    pub fn new(address: SocketAddr, hosts: &[String]) -> Self {
        let port = address.port();
        let mut names = vec![format!("localhost:{port}"), address.to_string()];
        if address.ip().is_loopback() || address.ip().is_unspecified() {
            names.extend([format!("127.0.0.1:{port}"), format!("[::1]:{port}")]);
        }
        for host in hosts {
            names.extend([
                host.to_ascii_lowercase(),
                format!("{host}:{port}").to_ascii_lowercase(),
            ]);
        }
        Self {
            token: secret(),
            cookie: secret(),
            page_key: secret(),
            hosts: names,
            port,
        }
    }

    /// The secret of the user.
    pub fn token(&self) -> &str {
        &self.token
    }

    /// The key of the page, which a login with the right token gets.
    pub(super) fn page_key(&self) -> &str {
        &self.page_key
    }

    /// Whether a request is addressed to us and comes from our page or from no page.
    pub(super) fn is_ours(&self, from: Credentials<'_>) -> bool {
        let is_host = |host: &str| {
            let host = host.to_ascii_lowercase();
            self.hosts.contains(&host)
        };
        if !from.host.is_some_and(is_host) {
            return false;
        }
        match from.origin {
            None => true,
            Some(origin) => origin.strip_prefix("http://").is_some_and(is_host),
        }
    }

    /// The proof that a request carries. A cookie counts only with an `Origin`.
    pub(super) fn proof(&self, from: Credentials<'_>) -> Option<Proof> {
        let token = from
            .authorization
            .and_then(|text| text.strip_prefix("Bearer "));
        if token.is_some_and(|token| same(token, &self.token)) {
            return Some(Proof::Token);
        }
        let name = self.cookie_name();
        let mut cookies = from.cookie.unwrap_or_default().split(';');
        let found = cookies.any(|cookie| {
            let pair = cookie.trim().split_once('=');
            pair.is_some_and(|(key, value)| key == name && same(value, &self.cookie))
        });
        (found && from.origin.is_some()).then_some(Proof::Cookie)
    }

    pub(super) fn is_token(&self, token: &str) -> bool {
        same(token, &self.token)
    }

    pub(super) fn is_page_key(&self, key: &str) -> bool {
        same(key, &self.page_key)
    }

    /// The value of the header that sets the cookie.
    pub(super) fn set_cookie(&self) -> String {
        let (name, value) = (self.cookie_name(), &self.cookie);
        format!("{name}={value}; Path=/; HttpOnly; SameSite=Strict")
    }

    /// With the port: two boards on one machine would overwrite each other's cookie.
    fn cookie_name(&self) -> String {
        format!("board-{}", self.port)
    }
}

impl std::fmt::Debug for Access {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Access")
            .field("hosts", &self.hosts)
            .finish_non_exhaustive()
    }
}

/// 244 random bits of the operating system.
fn secret() -> String {
    let (a, b) = (Uuid::new_v4().simple(), Uuid::new_v4().simple());
    format!("{a}{b}")
}

/// Compares in a time that does not depend on the content.
fn same(given: &str, secret: &str) -> bool {
    let (given, secret) = (given.as_bytes(), secret.as_bytes());
    let pairs = given.iter().zip(secret);
    let differing = pairs.fold(0, |sum, (a, b)| sum | (a ^ b));
    given.len() == secret.len() && std::hint::black_box(differing) == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn access() -> Access {
        Access::new("127.0.0.1:4000".parse().unwrap(), &["box.lan".to_owned()])
    }

    fn from<'a>(host: &'a str, origin: Option<&'a str>) -> Credentials<'a> {
        Credentials {
            host: Some(host),
            origin,
            ..Credentials::default()
        }
    }

    #[test]
    fn only_our_own_names_are_hosts_and_origins() {
        let access = access();
        let ours = [
            "127.0.0.1:4000",
            "localhost:4000",
            "LOCALHOST:4000",
            "[::1]:4000",
            "box.lan",
        ];
        for host in ours {
            assert!(access.is_ours(from(host, None)), "{host}");
            let origin = format!("http://{host}");
            assert!(access.is_ours(from(host, Some(&origin))), "{origin}");
        }
        let foreign = [
            "evil.example:4000",
            "127.0.0.1",
            "127.0.0.1:4001",
            "localhost.evil.example:4000",
            "127.0.0.1:4000.evil.example",
            "",
            "0.0.0.0:4000",
        ];
        for host in foreign {
            assert!(!access.is_ours(from(host, None)), "{host}");
            let origin = format!("http://{host}");
            assert!(
                !access.is_ours(from("127.0.0.1:4000", Some(&origin))),
                "{origin}"
            );
        }
        for origin in ["null", "https://127.0.0.1:4000", "file://", "http://", ""] {
            assert!(
                !access.is_ours(from("127.0.0.1:4000", Some(origin))),
                "{origin}"
            );
        }
        assert!(!access.is_ours(Credentials::default()));
    }

    #[test]
    fn a_proof_is_the_token_or_a_cookie_from_our_page() {
        let access = access();
        let cookie = access.set_cookie();
        let cookie = format!("other=1; {}", cookie.split(';').next().unwrap());
        let origin = Some("http://127.0.0.1:4000");
        let by_cookie = Credentials {
            cookie: Some(&cookie),
            ..from("127.0.0.1:4000", origin)
        };
        assert_eq!(access.proof(by_cookie), Some(Proof::Cookie));
        let without_origin = Credentials {
            origin: None,
            ..by_cookie
        };
        assert_eq!(access.proof(without_origin), None);
        let bearer = format!("Bearer {}", access.token());
        let by_token = Credentials {
            authorization: Some(&bearer),
            ..Credentials::default()
        };
        assert_eq!(access.proof(by_token), Some(Proof::Token));
        for wrong in [
            "",
            "Bearer ",
            "Bearer x",
            &bearer[..bearer.len() - 1],
            access.token(),
        ] {
            let wrong = Credentials {
                authorization: Some(wrong),
                ..Credentials::default()
            };
            assert_eq!(access.proof(wrong), None);
        }
        let prefix = format!("board-4000={}", &access.cookie[..10]);
        for wrong in [prefix.as_str(), "board-4000=", "board-4000"] {
            let wrong = Credentials {
                cookie: Some(wrong),
                ..by_cookie
            };
            assert_eq!(access.proof(wrong), None);
        }
    }

    #[test]
    fn secrets_differ_and_are_not_shown() {
        let (one, two) = (access(), access());
        assert_ne!(one.token(), two.token());
        assert_ne!(one.token(), one.cookie);
        assert!(!format!("{one:?}").contains(one.token()));
    }
}
