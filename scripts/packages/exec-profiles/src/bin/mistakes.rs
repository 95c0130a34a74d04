//! An invalid profile in the user's file is an error that names it; the others are loaded.

use std::error::Error;

use exec_profiles::ProfileRegistry;

const FILE: &str = r#"
[profiles.good]
binary = "cat"

[profiles.bad]
binary = "cat"
session_id = { from = "the moon" }
"#;

fn main() -> Result<(), Box<dyn Error>> {
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("profiles.toml");
    std::fs::write(&file, FILE)?;
    let registry = ProfileRegistry::new();
    let report = registry.load_user_file(&file)?;
    assert_eq!(report.labels, ["good"]);
    let [error] = report.errors.as_slice() else {
        return Err("expected exactly one error".into());
    };
    assert!(error.to_string().contains("bad"), "{error}");
    assert!(registry.labels().contains(&"claude-code".to_owned()));
    println!("{error}");
    Ok(())
}
