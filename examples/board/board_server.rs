//! The web server of the board.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::extract::rejection::BytesRejection;
use axum::extract::ws::WebSocketUpgrade;
use axum::extract::{ConnectInfo, DefaultBodyLimit, Request, State};
use axum::http::header::{
    AUTHORIZATION, CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, COOKIE, HOST, HeaderName,
    ORIGIN, REFERRER_POLICY, SET_COOKIE, X_CONTENT_TYPE_OPTIONS,
};
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use serde_json::{Value, json};
use tokio::net::TcpListener;

use super::access::{Access, Credentials};
use super::client;
use super::connections::{ConnectionPlace, GuardedListener};
use super::hub::Hub;
use crate::Result;

/// The most bytes of a frame of a client: the longest message and its JSON escapes.
const MAX_FRAME: usize = 512 * 1024;
/// The most bytes of a login.
const MAX_LOGIN: usize = 1024;
/// The most connections without a proof that are served at once, and the time that each has.
const MAX_UNPROVED: usize = 64;
const UNPROVED_LIMIT: Duration = Duration::from_secs(20);

/// A bound server. Dropping it frees the port.
pub struct BoardServer {
    listener: GuardedListener,
    address: SocketAddr,
    site: Arc<Site>,
}

/// Settings of a server.
pub struct BoardServerBuilder {
    hub: Hub,
    listen: SocketAddr,
    beyond_loopback: bool,
    hosts: Vec<String>,
    unproved: (usize, Duration),
}

struct Site {
    hub: Hub,
    access: Access,
}

impl BoardServer {
    /// A server for a board. Default: a free port of 127.0.0.1.
    #[must_use]
    pub fn builder(hub: Hub) -> BoardServerBuilder {
        BoardServerBuilder {
            hub,
            listen: SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0),
            beyond_loopback: false,
            hosts: Vec::new(),
            unproved: (MAX_UNPROVED, UNPROVED_LIMIT),
        }
    }

    /// The address for a browser, with the token in its fragment: a secret of the user.
    pub fn address(&self) -> String {
        let (address, token) = (self.address, self.site.access.token());
        format!("http://{address}/#token={token}")
    }

    /// The address of the socket.
    pub fn socket_address(&self) -> SocketAddr {
        self.address
    }

    /// The secret for clients that send it in a header.
    pub fn token(&self) -> &str {
        self.site.access.token()
    }

    /// Serves until it is dropped.
    ///
    /// # Errors
    ///
    /// The listening socket fails.
    pub async fn serve(self) -> Result<()> {
        let app = Router::new()
            .route("/", get(|| page("text/html; charset=utf-8", INDEX)))
            .route("/board.css", get(|| page("text/css; charset=utf-8", STYLE)))
            .route(
                "/board.js",
                get(|| page("text/javascript; charset=utf-8", SCRIPT)),
            )
            .route("/icon.svg", get(|| page("image/svg+xml", ICON)))
            .route("/login", post(login))
            .route("/events", get(events))
            .layer(DefaultBodyLimit::max(MAX_LOGIN))
            .layer(middleware::from_fn_with_state(self.site.clone(), guard))
            .with_state(self.site);
        let app = app.into_make_service_with_connect_info::<ConnectionPlace>();
        axum::serve(self.listener, app).await?;
        Ok(())
    }
}

impl BoardServerBuilder {
    /// The address to listen on. Addresses beyond loopback must be allowed.
    #[must_use]
    pub fn listen(mut self, address: SocketAddr) -> Self {
        self.listen = address;
        self
    }

    /// Allows an address that other machines reach. The connection is not encrypted.
    #[must_use]
    pub fn beyond_loopback(mut self) -> Self {
        self.beyond_loopback = true;
        self
    }

    /// A further name by which browsers address the server.
    #[must_use]
    pub fn host(mut self, name: impl Into<String>) -> Self {
        self.hosts.push(name.into());
        self
    }

    /// The most connections without a proof that are served at once, and the time that each has;
    /// default: 64, 20 seconds.
    #[must_use]
    pub fn unproved(mut self, connections: usize, limit: Duration) -> Self {
        self.unproved = (connections, limit);
        self
    }

    /// Opens the listening socket.
    ///
    /// # Errors
    ///
    /// The address is not loopback and that was not allowed, or it cannot be bound.
    pub async fn bind(self) -> Result<BoardServer> {
        if !self.listen.ip().is_loopback() && !self.beyond_loopback {
            let address = self.listen;
            let message = format!(
                "refusing {address}: other machines reach it, and the connection is not encrypted"
            );
            return Err(message.into());
        }
        let listener = TcpListener::bind(self.listen)
            .await
            .map_err(|error| format!("cannot listen on {}: {error}", self.listen))?;
        let address = listener.local_addr()?;
        let access = Access::new(address, &self.hosts);
        let site = Arc::new(Site {
            hub: self.hub,
            access,
        });
        let (places, limit) = self.unproved;
        Ok(BoardServer {
            listener: GuardedListener::new(listener, places, limit),
            address,
            site,
        })
    }
}

const INDEX: &str = include_str!("page/index.html");
const STYLE: &str = include_str!("page/board.css");
const SCRIPT: &str = include_str!("page/board.js");
const ICON: &str = include_str!("page/icon.svg");

async fn page(kind: &'static str, text: &'static str) -> Response {
    ([(CONTENT_TYPE, kind)], text).into_response()
}

/// Refuses requests that are not for us, and adds the headers that close the page to others.
async fn guard(State(site): State<Arc<Site>>, request: Request, next: Next) -> Response {
    let from = credentials(request.headers());
    let mut response = match site.access.is_ours(from) {
        true => next.run(request).await,
        false => StatusCode::FORBIDDEN.into_response(),
    };
    let headers = response.headers_mut();
    for (name, value) in SAFE_HEADERS {
        headers.insert(name, HeaderValue::from_static(value));
    }
    response
}

/// No script, style, frame or connection but our own; `innerHTML` and its kind are switched off.
const SAFE_HEADERS: [(HeaderName, &str); 6] = [
    (
        CONTENT_SECURITY_POLICY,
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; \
         connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; \
         require-trusted-types-for 'script'; trusted-types 'none'",
    ),
    (REFERRER_POLICY, "no-referrer"),
    (X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (CACHE_CONTROL, "no-store"),
    (
        HeaderName::from_static("cross-origin-opener-policy"),
        "same-origin",
    ),
    (
        HeaderName::from_static("cross-origin-resource-policy"),
        "same-origin",
    ),
];

fn credentials(headers: &HeaderMap) -> Credentials<'_> {
    // Two headers of one name could be read in two ways.
    let one = |name: HeaderName| {
        let mut values = headers.get_all(name).iter();
        let value = values.next()?;
        match values.next() {
            None => Some(value.to_str().unwrap_or("?")),
            Some(_) => Some("?"),
        }
    };
    Credentials {
        host: one(HOST),
        origin: one(ORIGIN),
        cookie: one(COOKIE),
        authorization: one(AUTHORIZATION),
    }
}

/// Exchanges the token for the cookie and the key of the page. The content type is one that a page
/// of another site cannot send without asking first.
async fn login(
    State(site): State<Arc<Site>>,
    headers: HeaderMap,
    body: std::result::Result<Bytes, BytesRejection>,
) -> Response {
    let json = headers
        .get(CONTENT_TYPE)
        .is_some_and(|kind| kind == "application/json");
    let body = body.ok().filter(|_| json);
    let body: Option<Value> = body.and_then(|body| serde_json::from_slice(&body).ok());
    let token = body.as_ref().and_then(|body| body["token"].as_str());
    if !token.is_some_and(|token| site.access.is_token(token)) {
        return StatusCode::FORBIDDEN.into_response();
    }
    let key = json!({"key": site.access.page_key()}).to_string();
    let headers = [
        (SET_COOKIE, site.access.set_cookie()),
        (CONTENT_TYPE, "application/json".to_owned()),
    ];
    (headers, key).into_response()
}

async fn events(
    State(site): State<Arc<Site>>,
    ConnectInfo(place): ConnectInfo<ConnectionPlace>,
    headers: HeaderMap,
    upgrade: WebSocketUpgrade,
) -> Response {
    let Some(proof) = site.access.proof(credentials(&headers)) else {
        return StatusCode::FORBIDDEN.into_response();
    };
    place.leave();
    upgrade
        .max_message_size(MAX_FRAME)
        .max_frame_size(MAX_FRAME)
        .write_buffer_size(0)
        .on_upgrade(async move |socket| {
            client::serve(socket, site.hub.clone(), &site.access, proof).await;
        })
}
