//! Without a runtime.

use timed_store::blocking::TimedStorage;

fn main() -> Result<(), timed_store::Error> {
    let store = TimedStorage::<String>::builder_in_temp("operators").open()?;
    println!("{:?}", store.claim("tsukuyomi".to_owned())?.granted());
    Ok(())
}
