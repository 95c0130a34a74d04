//! The page of a crew: the board in this program.

use std::sync::Arc;

use agent_snapshot::SnapshotStorage;
use examples::Result;
use examples::board::sources::{ClaimsSource, LiveSource, SnapshotSource};
use examples::board::{BoardServer, Budget, Change, Hub};
use serde_json::json;
use timed_store::TimedStorage;

use crate::crew::Crew;
use crate::report::{Report, Tone};

/// A page that is served. The agents in panes are added to it when they run.
pub struct Page {
    pub hub: Hub,
    /// The headless agents, which the page can steer.
    pub live: LiveSource,
    /// Holds the token.
    pub address: String,
}

impl Page {
    /// Starts the server and prints the address. It ends with the runtime.
    pub async fn serve(
        crew: &Crew,
        storage: Arc<dyn SnapshotStorage>,
        report: Report,
    ) -> Result<Self> {
        let (hub, live) = (Hub::new(&crew.id), LiveSource::new());
        let feed = hub.follow(Arc::new(live.clone()));
        let (cost_usd, tokens) = (crew.file.budget.cost_usd, crew.file.budget.tokens);
        feed.push(Change::Budget(Budget {
            agent: None,
            cost_usd,
            tokens,
        }));
        let roles = match &crew.redis {
            Some(url) => {
                let store = TimedStorage::connect(url, &format!("{}-roles", crew.id)).await?;
                ClaimsSource::new("roles", store)
            }
            None => ClaimsSource::of_file("roles", crew.folder.join("roles.json"))?,
        };
        hub.follow(Arc::new(roles));
        // The storage also has the results of the tasks.
        let states = SnapshotSource::new("states", storage).only(format!("{}.", crew.id));
        hub.follow(Arc::new(states));
        let server = BoardServer::builder(hub.clone()).bind().await?;
        let address = server.address();
        report.event(
            "page",
            Tone::Plain,
            json!({"address": address}),
            &format!("page: {address}"),
        );
        tokio::spawn(server.serve());
        Ok(Self { hub, live, address })
    }
}
