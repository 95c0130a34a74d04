//! Prints every public item of a crate, read from the pages that `cargo doc` has written.
//!
//! Usage: `public-api target/doc/CRATE`. `scripts/public-api` compares the list with the committed
//! one. The HTML pages are the only description of the public items that a stable toolchain gives.

#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a command-line program prints"
)]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::process::ExitCode;

fn main() -> ExitCode {
    let Some(folder) = std::env::args_os().nth(1) else {
        eprintln!("usage: public-api target/doc/CRATE");
        return ExitCode::from(2);
    };
    match list(Path::new(&folder)) {
        Ok(list) => {
            print!("{list}");
            ExitCode::SUCCESS
        }
        Err(reason) => {
            eprintln!("public-api: {reason}");
            ExitCode::FAILURE
        }
    }
}

fn list(folder: &Path) -> Result<String, String> {
    let read = |page: &str| {
        let path = folder.join(page);
        fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))
    };
    let index = read("all.html")?;
    let (_, index) = index
        .split_once("id=\"main-content\"")
        .ok_or("all.html has an unexpected form: this version of rustdoc is not supported")?;
    let mut pages: Vec<&str> = between(index, "<a href=\"", "\"")
        .filter(|link| link.ends_with(".html") && !link.starts_with(['.', '#']))
        .collect();
    pages.sort_unstable_by_key(|page| path_of(page));
    let own = folder.file_name().unwrap_or_default().to_string_lossy();
    let mut text = String::new();
    let mut foreign: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for page in pages {
        let html = read(page)?;
        let item = item(&html).ok_or_else(|| format!("{page} has no declaration"))?;
        text.push_str(&format!("{own}::{}\n", path_of(page)));
        for line in item.lines() {
            text.push_str(&format!("    {line}\n"));
        }
        for path in foreign_types(&html, &own) {
            foreign.entry(path).or_default().insert(path_of(page));
        }
    }
    if text.is_empty() {
        return Err("all.html lists no item: this version of rustdoc is not supported".to_owned());
    }
    text.push_str("\ntypes of other crates\n");
    for (path, items) in foreign {
        let items: Vec<String> = items.into_iter().collect();
        text.push_str(&format!("    {path}: {}\n", items.join(", ")));
    }
    Ok(text)
}

/// The path of an item: `blocking::Store` for `blocking/struct.Store.html`.
fn path_of(page: &str) -> String {
    let page = page.trim_end_matches(".html");
    let (modules, file) = page.rsplit_once('/').unwrap_or(("", page));
    let name = file.split_once('.').map_or(file, |(_, name)| name);
    let modules = modules.replace('/', "::");
    [modules.as_str(), name]
        .into_iter()
        .filter(|part| !part.is_empty())
        .collect::<Vec<_>>()
        .join("::")
}

/// The declaration of an item, its methods, and the traits that it implements.
fn item(html: &str) -> Option<String> {
    let declaration = between(
        html,
        "<pre class=\"rust item-decl\"><code>",
        "</code></pre>",
    )
    .next()?;
    // rustdoc folds a long list of variants under a `<summary>` line.
    let unfolded: String = declaration
        .split("<summary")
        .map(|part| part.split_once("</summary>").map_or(part, |(_, rest)| rest))
        .collect();
    let mut lines: Vec<String> = plain(&unfolded.replace("</div>", "\n"))
        .lines()
        .map(str::to_owned)
        .collect();
    let headers = |section: &str, header: &str| -> Vec<String> {
        let start = format!("<h{header} class=\"code-header\">");
        let end = format!("</h{header}>");
        between(section, &start, &end).map(one_line).collect()
    };
    let methods = section(html, "implementations");
    // Associated constants and types have headers of the same level.
    lines.extend(headers(methods, "4"));
    let mut traits = headers(section(html, "trait-implementations"), "3");
    traits.retain(|header| !header.contains("StructuralPartialEq"));
    traits.sort();
    lines.extend(traits);
    let auto: Vec<String> = headers(section(html, "synthetic-implementations"), "3")
        .into_iter()
        .filter(|header| {
            [" Send for ", " Sync for "]
                .iter()
                .any(|name| header.contains(name))
        })
        .collect();
    lines.extend(auto);
    Some(lines.join("\n"))
}

/// The part of a page from the heading with this id to the next heading.
fn section<'a>(html: &'a str, id: &str) -> &'a str {
    let Some((_, rest)) = html.split_once(&format!("<h2 id=\"{id}\"")) else {
        return "";
    };
    rest.split_once("<h2 id=\"")
        .map_or(rest, |(section, _)| section)
}

/// Types of third-party crates in declarations, signatures and headers of trait implementations.
fn foreign_types<'a>(html: &'a str, own: &'a str) -> impl Iterator<Item = String> + 'a {
    let declaration = between(
        html,
        "<pre class=\"rust item-decl\"><code>",
        "</code></pre>",
    );
    let methods = between(
        section(html, "implementations"),
        "<h4 class=\"code-header\">",
        "</h4>",
    );
    let traits = between(
        section(html, "trait-implementations"),
        "<h3 class=\"code-header\">",
        "</h3>",
    );
    declaration
        .chain(methods)
        .chain(traits)
        .flat_map(|part| between(part, " title=\"", "\""))
        .filter_map(|title| title.split_once(' '))
        .map(|(_, path)| path.to_owned())
        .filter(move |path| {
            let root = path.split("::").next().unwrap_or_default();
            // Without `exec_core`: rustdoc links to it only if its pages were built before.
            path.contains("::") && ![own, "exec_core", "std", "core", "alloc"].contains(&root)
        })
}

/// Every text between `start` and the `end` that follows it.
fn between<'a>(text: &'a str, start: &'a str, end: &'a str) -> impl Iterator<Item = &'a str> {
    text.split(start)
        .skip(1)
        .filter_map(move |rest| rest.split_once(end).map(|(inside, _)| inside))
}

fn one_line(html: &str) -> String {
    let text = plain(&html.replace("<div", " <div"));
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Text without tags and entities.
fn plain(html: &str) -> String {
    let mut text = String::new();
    let mut inside = false;
    for c in html.chars() {
        match c {
            '<' => inside = true,
            '>' if inside => inside = false,
            c if !inside => text.push(c),
            _ => {}
        }
    }
    // The ampersand is last, so that its result is not decoded a second time.
    [
        ("&lt;", "<"),
        ("&gt;", ">"),
        ("&quot;", "\""),
        ("&#39;", "'"),
        ("&nbsp;", " "),
        ("&amp;", "&"),
    ]
    .iter()
    .fold(text, |text, (entity, c)| text.replace(entity, c))
}
