//! The suite for storages, without any backend but memory.

use std::sync::Arc;

use agent_snapshot::{MemoryStorage, conformance};

#[tokio::main]
async fn main() {
    let report = conformance::run(async || Arc::new(MemoryStorage::new())).await;
    assert!(report.passed(), "{report}");
}
