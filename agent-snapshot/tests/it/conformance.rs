//! Every backend through the suite.

use std::sync::Arc;

use agent_snapshot::{MemoryStorage, conformance};

#[tokio::test(flavor = "multi_thread")]
async fn memory_storage_conforms() {
    let report = conformance::run(async || Arc::new(MemoryStorage::new())).await;
    assert!(report.passed(), "{report}");
    assert!(report.outcomes.len() >= 50);
    eprintln!("{report}");
}
