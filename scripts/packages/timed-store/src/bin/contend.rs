//! Two processes claim the same port: one gets it, the other is told the holder.

use std::error::Error;
use std::process::{Command, Stdio};

use timed_store::blocking::TimedStorage;
use timed_store::{Claim, SessionId};

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.as_slice() {
        [file, session] => contend(file, session),
        _ => start_two(),
    }
}

fn contend(file: &str, session: &str) -> Result<(), Box<dyn Error>> {
    let store = TimedStorage::<u16>::builder(file)
        .session(SessionId::new(session)?)
        .lock(timed_store::LockPolicy::Wait(std::time::Duration::from_secs(20)))
        .open()?;
    match store.claim(8080)? {
        Claim::Granted(lease) => println!("{session} has {}", lease.value()),
        Claim::Busy { holder, .. } => println!("{session} sees that {holder} has it"),
    }
    Ok(())
}

fn start_two() -> Result<(), Box<dyn Error>> {
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("ports.json");
    let start = |session: &str| {
        Command::new(std::env::current_exe()?)
            .arg(&file)
            .arg(session)
            .stdout(Stdio::piped())
            .spawn()
    };
    let children = [start("left")?, start("right")?];
    let mut granted = 0;
    for child in children {
        let output = child.wait_with_output()?;
        assert!(output.status.success());
        let said = String::from_utf8(output.stdout)?;
        print!("{said}");
        granted += usize::from(said.contains("has 8080"));
    }
    assert_eq!(granted, 1);
    Ok(())
}
