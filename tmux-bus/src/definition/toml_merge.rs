//! The definition of a user over a built-in one.

use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// Puts the keys of `over` into `under`. Tables are merged; in lists of rules, which have ids, a rule
/// replaces the one of the same id, and new rules come first, because the first match counts; every
/// other value is replaced.
pub(super) fn merge<'i>(under: &mut DeTable<'i>, over: DeTable<'i>) {
    for (key, value) in over {
        match under.get_mut(&key) {
            Some(old) => merge_value(old, value),
            None => {
                under.insert(key, value);
            }
        }
    }
}

fn merge_value<'i>(old: &mut Spanned<DeValue<'i>>, new: Spanned<DeValue<'i>>) {
    let span = new.span();
    match (old.get_mut(), new.into_inner()) {
        (DeValue::Table(under), DeValue::Table(over)) => merge(under, over),
        (DeValue::Array(rules), DeValue::Array(more))
            if rules
                .iter()
                .chain(more.iter())
                .all(|rule| id(rule).is_some()) =>
        {
            let (same, mut first): (Vec<_>, Vec<_>) = more
                .into_iter()
                .partition(|rule| rules.iter().any(|old| id(old) == id(rule)));
            for rule in same {
                if let Some(old) = rules.iter_mut().find(|old| id(old) == id(&rule)) {
                    *old = rule;
                }
            }
            let others = std::mem::replace(rules, std::iter::empty().collect());
            first.extend(others);
            *rules = first.into_iter().collect();
        }
        (_, new) => *old = Spanned::new(span, new),
    }
}

fn id<'a>(rule: &'a Spanned<DeValue<'_>>) -> Option<&'a str> {
    match rule.get_ref().get("id")?.get_ref() {
        DeValue::String(id) => Some(id),
        _ => None,
    }
}

/// Removes all positions: those of another file must not be reported.
pub(super) fn without_spans(table: DeTable<'_>) -> DeTable<'_> {
    table
        .into_iter()
        .map(|(key, value)| (Spanned::new(0..0, key.into_inner()), bare(value)))
        .collect()
}

fn bare(value: Spanned<DeValue<'_>>) -> Spanned<DeValue<'_>> {
    let value = match value.into_inner() {
        DeValue::Table(table) => DeValue::Table(without_spans(table)),
        DeValue::Array(array) => DeValue::Array(array.into_iter().map(bare).collect()),
        other => other,
    };
    Spanned::new(0..0, value)
}
