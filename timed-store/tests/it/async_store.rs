//! The async face: the same operations, and what waiting means there.

use timed_store::{Durability, LockPolicy, SessionId, TimedStorage};

use crate::support::{LONG, Place, s};

#[tokio::test]
async fn the_async_store_is_the_same_store() {
    let place = Place::new();
    for durability in [Durability::Process, Durability::Power] {
        let store = TimedStorage::<String>::builder_at(place.path())
            .session(SessionId::new("a").unwrap())
            .manual_clock(place.clock.clone())
            .lock(LockPolicy::Wait(LONG))
            .durability(durability)
            .open()
            .unwrap();
        store.store(&s("x")).await.unwrap();
        assert_eq!(place.store("a").restore().unwrap(), Some(s("x")));
        assert!(store.refresh().await.unwrap());
        assert!(store.claim(s("x")).await.unwrap().granted().is_some());
        assert_eq!(
            store
                .transaction(|entries| entries.iter().count())
                .await
                .unwrap(),
            1
        );
        assert_eq!(store.entries().await.unwrap().mine().unwrap().value(), "x");
        assert!(store.get_other_entries().await.unwrap().is_empty());
        assert_eq!(store.to_blocking().restore().unwrap(), Some(s("x")));
        assert!(store.remove().await.unwrap());
        assert_eq!(store.restore().await.unwrap(), None);
    }
}
