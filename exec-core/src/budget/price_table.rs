//! From tokens to money.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::Usage;

/// Prices of models, for the [cost budget](crate::Budget::cost_usd) of agents that report no cost, or
/// report it later than their tokens: the tokens since the last report have the price of the table.
///
/// The key of a model is the beginning of its name; the longest one that fits decides. A model
/// without a key, and an agent that does not name its model, have the price `other`. So a cost is
/// never unknown. The table is data: it can be read from a file by `serde`.
///
/// ```
/// use exec_core::{Price, PriceTable};
///
/// let table: PriceTable = serde_json::from_str(
///     r#"{
///         "other": { "input": 10.0, "output": 50.0 },
///         "models": { "gpt-5": { "input": 1.25, "cache_read": 0.125, "output": 10.0 } }
///     }"#,
/// )?;
/// let in_code = PriceTable::new(Price::new(10.0, 50.0))
///     .model("gpt-5", Price { cache_read: Some(0.125), ..Price::new(1.25, 10.0) });
/// assert_eq!(table, in_code);
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PriceTable {
    other: Price,
    #[serde(default)]
    models: BTreeMap<String, Price>,
}

/// US dollars for a million tokens.
///
/// ```
/// use exec_core::Price;
///
/// let price = Price { cache_read: Some(0.3), ..Price::new(3.0, 15.0) };
/// assert_eq!(price.input, 3.0);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Price {
    /// Input tokens that are neither read from nor written to the cache.
    pub input: f64,
    /// Tokens read from the cache; `None`: as `input`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache_read: Option<f64>,
    /// Tokens written to the cache; `None`: as `input`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache_write: Option<f64>,
    /// Output tokens.
    pub output: f64,
}

impl Price {
    /// The prices of a model whose cached tokens cost as much as others.
    #[must_use]
    pub fn new(input: f64, output: f64) -> Self {
        Self {
            input,
            cache_read: None,
            cache_write: None,
            output,
        }
    }

    fn of(&self, usage: &Usage) -> f64 {
        let count = |tokens: Option<u64>| tokens.unwrap_or(0) as f64;
        let (read, written) = (
            count(usage.cache_read_tokens),
            count(usage.cache_write_tokens),
        );
        // The input tokens of a usage include the cached ones.
        let uncached = (count(usage.input_tokens) - read - written).max(0.0);
        let millions = uncached * self.input
            + read * self.cache_read.unwrap_or(self.input)
            + written * self.cache_write.unwrap_or(self.input)
            + count(usage.output_tokens) * self.output;
        millions / 1e6
    }
}

impl PriceTable {
    /// A table with the price of models that it does not name.
    #[must_use]
    pub fn new(other: Price) -> Self {
        Self {
            other,
            models: BTreeMap::new(),
        }
    }

    /// Adds the price of the models whose names begin with `name`.
    #[must_use]
    pub fn model(mut self, name: impl Into<String>, price: Price) -> Self {
        self.models.insert(name.into(), price);
        self
    }

    /// The cost of the tokens in US dollars.
    pub(super) fn cost_usd(&self, model: Option<&str>, usage: &Usage) -> f64 {
        let named = model.and_then(|model| {
            let fitting = self
                .models
                .iter()
                .filter(|(key, _)| model.starts_with(*key));
            fitting.max_by_key(|(key, _)| key.len())
        });
        named.map_or(&self.other, |(_, price)| price).of(usage)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_name_decides_and_cached_tokens_have_their_price() {
        let table = PriceTable::new(Price::new(100.0, 100.0))
            .model("gpt", Price::new(1.0, 10.0))
            .model(
                "gpt-5",
                Price {
                    cache_read: Some(0.5),
                    ..Price::new(2.0, 20.0)
                },
            );
        let usage = Usage {
            input_tokens: Some(1_000_000),
            cache_read_tokens: Some(400_000),
            output_tokens: Some(100_000),
            reasoning_tokens: Some(50_000),
            ..Usage::default()
        };
        let cost = |model| table.cost_usd(model, &usage);
        assert!((cost(Some("gpt-5.5-codex")) - (1.2 + 0.2 + 2.0)).abs() < 1e-9);
        assert!((cost(Some("gpt-4")) - (1.0 + 1.0)).abs() < 1e-9);
        assert!((cost(Some("other")) - 110.0).abs() < 1e-9);
        assert!((cost(None) - 110.0).abs() < 1e-9);
    }
}
