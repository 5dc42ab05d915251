//! A Hugging Face tokenizer loaded from the bytes of tokenizer.json, without the features that an untrusted file could
//! abuse.

use std::collections::HashMap;

use serde_json::Value;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::{AddedToken, NormalizerWrapper, Tokenizer};

use crate::charsmap::{check_charsmaps, longest_replacement};
use crate::Failure;

const MAX_TEXT_BYTES: usize = 64 << 20;
/// Maximum factor by which normalizers or decoders may lengthen a text. Llama's " " → "▁" has factor 3. A chain of
/// doublings ("a" → "aa", 60 times) would exhaust memory, and Rust cannot report that as an error.
const MAX_GROWTH: f64 = 4096.0;
/// Texts that a tokenizer must encode without a panic when it is loaded: characters of one to four bytes, composed
/// ones, blanks, numbers and marks, at the end of a text and within it.
const PROBES: [&str; 3] = ["a", " Hi, Zoë!\n\t12 x_y ﷺ e\u{301} 漢字 🙂", "é"];

pub struct HfTokenizer {
    pub(crate) inner: Tokenizer,
    streaming: Streaming,
}

#[derive(Clone, Copy, PartialEq)]
pub enum Streaming {
    Whole = 0,
    Prefix = 1,
    ByteRuns = 2,
}

#[derive(serde::Deserialize)]
struct FirstStage<T> {
    normalizer: Option<T>,
}

/// Runs `file`, which parses JSON. The library calls unwrap in its deserialisers, so a panic there is reported as a bad
/// file and not as an internal failure.
fn read<T, E: std::fmt::Display>(file: impl FnOnce() -> Result<T, E> + std::panic::UnwindSafe) -> Result<T, Failure> {
    let reason = match std::panic::catch_unwind(file) {
        Ok(Ok(value)) => return Ok(value),
        Ok(Err(error)) => text_of(error),
        Err(panic) => crate::text_of_panic(panic),
    };
    Err(Failure::invalid(format!("not a Hugging Face tokenizer: {reason}")))
}

fn text_of(error: impl std::fmt::Display) -> String {
    error.to_string()
}

impl HfTokenizer {
    pub fn from_json(json: &[u8], added: &[u8]) -> Result<HfTokenizer, Failure> {
        let part = |value: Result<Value, serde_json::Error>| value.map_err(|e| Failure::invalid(text_of(e)));
        // Checked first, because the library trusts the sizes in a charsmap while it reads it.
        let raw = read(|| serde_json::from_slice::<FirstStage<Value>>(json))?;
        check_charsmaps(&raw.normalizer.unwrap_or_default())?;
        // Checked before the rest, because the library normalizes added tokens while it reads the file.
        let first = read(|| serde_json::from_slice::<FirstStage<NormalizerWrapper>>(json))?;
        let normalizer = part(serde_json::to_value(first.normalizer))?;
        check_patterns("normalizer", &normalizer)?;
        check_growth("normalizer", &normalizer)?;
        let mut inner = read(|| Tokenizer::from_bytes(json))?;
        // Drops stored truncation and padding: they belong to a training script, and padding to a fixed length may take
        // any amount of memory.
        inner.with_padding(None);
        inner.with_truncation(None).map_err(|e| Failure::invalid(text_of(e)))?;
        let decoder = part(serde_json::to_value(inner.get_decoder()))?;
        check_patterns("decoder", &decoder)?;
        check_growth("decoder", &decoder)?;
        check_pre_tokenizer(&part(serde_json::to_value(inner.get_pre_tokenizer()))?)?;
        change_added_tokens(&mut inner, added)?;
        let streaming = streaming_of(&decoder, || is_of_bytes(&inner));
        let tokenizer = HfTokenizer { inner, streaming };
        tokenizer.probe()?;
        Ok(tokenizer)
    }

    /// Refuses a file with which the library panics, because every request would panic too. If the library returns an
    /// error for a text, the file is still accepted: its vocabulary may only lack the characters of that text.
    fn probe(&self) -> Result<(), Failure> {
        for text in PROBES {
            let ids =
                std::panic::AssertUnwindSafe(|| self.encode(text, true).and_then(|ids| self.decode(&ids, false)).err());
            if let Err(panic) = std::panic::catch_unwind(ids) {
                return Err(Failure::invalid(format!("fails for the text {text:?}: {}", crate::text_of_panic(panic))));
            }
        }
        Ok(())
    }

    pub fn encode(&self, text: &str, add_special: bool) -> Result<Vec<u32>, Failure> {
        if text.len() > MAX_TEXT_BYTES {
            return Err(Failure::limit(format!(
                "text: {} bytes, at most {MAX_TEXT_BYTES} can be encoded at once",
                text.len()
            )));
        }
        let encoding = self.inner.encode_fast(text, add_special).map_err(|e| Failure::invalid(text_of(e)))?;
        Ok(encoding.get_ids().to_vec())
    }

    pub fn decode(&self, ids: &[u32], skip_special: bool) -> Result<String, Failure> {
        self.inner.decode(ids, skip_special).map_err(|e| Failure::invalid(text_of(e)))
    }

    pub fn vocab_size(&self) -> usize {
        self.inner.get_vocab_size(true)
    }

    pub fn token_to_id(&self, token: &str) -> Option<u32> {
        self.inner.token_to_id(token)
    }

    pub fn id_to_token(&self, id: u32) -> Option<(String, bool)> {
        let token = self.inner.id_to_token(id)?;
        let special = self.inner.get_added_vocabulary().is_special_token(&token);
        Some((token, special))
    }

    pub fn streaming(&self) -> Streaming {
        self.streaming
    }
}

/// Applies `changes` as specdec_rs.h describes them, by the rules of transformers 5.23
/// (tokenization_utils_tokenizers.py).
fn change_added_tokens(inner: &mut Tokenizer, changes: &[u8]) -> Result<(), Failure> {
    let changes: Vec<Value> =
        serde_json::from_slice(changes).map_err(|e| Failure::invalid(format!("added tokens: {e}")))?;
    let mut known: HashMap<String, AddedToken> =
        inner.get_added_tokens_decoder().into_values().map(|t| (t.content.clone(), t)).collect();
    let mut tokens = Vec::new();
    for change in &changes {
        let flag = |name: &str, absent: bool| change.get(name).and_then(Value::as_bool).unwrap_or(absent);
        let content = change.get("content").and_then(Value::as_str).unwrap_or_default();
        let special = flag("special", false);
        let token = match (known.get(content), change.get("known").and_then(Value::as_str)) {
            (Some(_), Some("keep")) => continue,
            (Some(token), Some("special")) => AddedToken { special: true, ..token.clone() },
            _ => AddedToken::from(content, special)
                .single_word(flag("single_word", false))
                .lstrip(flag("lstrip", false))
                .rstrip(flag("rstrip", false))
                .normalized(flag("normalized", !special)),
        };
        if known.insert(content.to_string(), token.clone()).as_ref() != Some(&token) {
            tokens.push(token);
        }
    }
    if tokens.is_empty() {
        return Ok(()); // add_tokens() would rebuild the library's tables for nothing
    }
    inner.add_tokens(tokens).map(|_| ()).map_err(|e| Failure::invalid(format!("added tokens: {e}")))
}

fn parts<'a>(stage: &'a Value, key: &str) -> &'a [Value] {
    stage.get(key).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

fn check_growth(name: &str, stage: &Value) -> Result<(), Failure> {
    match growth(stage) {
        factor if factor > MAX_GROWTH => Err(Failure::invalid(format!(
            "{name}: may stretch a text {factor:.0} times, at most {MAX_GROWTH} are accepted"
        ))),
        _ => Ok(()),
    }
}

/// Refuses a Replace stage whose pattern is the empty text, because the library also finds it after the last character
/// and then fails.
fn check_patterns(name: &str, stage: &Value) -> Result<(), Failure> {
    let stages = parts(stage, "normalizers").iter().chain(parts(stage, "decoders"));
    stages.into_iter().try_for_each(|part| check_patterns(name, part))?;
    match stage.pointer("/pattern/String").and_then(Value::as_str) {
        Some("") => Err(Failure::invalid(format!("{name}: Replace with an empty pattern"))),
        _ => Ok(()),
    }
}

/// Returns an upper bound on the output bytes per input byte of a normalizer or decoder, from its JSON.
fn growth(stage: &Value) -> f64 {
    match stage.get("type").and_then(Value::as_str) {
        Some("Sequence") => parts(stage, "normalizers").iter().chain(parts(stage, "decoders")).map(growth).product(),
        Some("Replace") => {
            let content = stage.get("content").and_then(Value::as_str).map_or(0, str::len) as f64;
            // A literal pattern consumes its own length. A regular expression may match an empty text, and so insert
            // text before every byte.
            match stage.pointer("/pattern/String").and_then(Value::as_str) {
                Some(literal) if !literal.is_empty() => (content / literal.len() as f64).max(1.0),
                _ => content + 1.0,
            }
        }
        Some("Prepend") => stage.get("prepend").and_then(Value::as_str).map_or(1.0, |s| 1.0 + s.len() as f64),
        Some("Precompiled") => longest_replacement(stage).max(1) as f64,
        // Under NFKC, U+FDFA becomes 18 characters, which is 11 bytes per byte. ByteLevel doubles at most.
        Some("NFKC" | "NFKD" | "NFC" | "NFD" | "BertNormalizer") => 12.0,
        Some("ByteLevel") => 2.0,
        _ => 1.0,
    }
}

/// Refuses FixedLength with length 0, which would split a text without end.
fn check_pre_tokenizer(stage: &Value) -> Result<(), Failure> {
    for part in parts(stage, "pretokenizers") {
        check_pre_tokenizer(part)?;
    }
    if stage.get("type").and_then(Value::as_str) == Some("FixedLength")
        && stage.get("length").and_then(Value::as_u64) == Some(0)
    {
        return Err(Failure::invalid("pre_tokenizer: FixedLength with length 0"));
    }
    Ok(())
}

/// Returns whether every token of the vocabulary consists of the characters by which ByteLevel represents bytes, and no
/// token is a byte token of ByteFallback.
fn is_of_bytes(inner: &Tokenizer) -> bool {
    let alphabet = ByteLevel::alphabet();
    let is_byte = |token: &str| token.len() == 6 && token.starts_with("<0x") && token.ends_with('>');
    inner.get_vocab(true).keys().all(|token| !is_byte(token) && token.chars().all(|c| alphabet.contains(&c)))
}

/// Returns how much of a decoder's output is final while tokens are still being appended. For an unknown stage it is
/// Whole, which is always safe. Calls `is_of_bytes` at most once per stage.
fn streaming_of(decoder: &Value, is_of_bytes: impl Fn() -> bool) -> Streaming {
    struct Stages {
        fused: bool,
        changes_bytes: bool, // replaces a character that represents a byte
        found: Streaming,
    }
    fn merge(stage: &Value, before: &mut Stages, is_of_bytes: &dyn Fn() -> bool) {
        match stage.get("type").and_then(Value::as_str) {
            None if stage.is_null() => {}
            Some("Sequence") => parts(stage, "decoders").iter().for_each(|part| merge(part, before, is_of_bytes)),
            Some("ByteLevel" | "Metaspace" | "WordPiece" | "BPEDecoder") if !before.fused => {}
            // After the stage Fuse has joined the texts of all tokens, ByteLevel treats either all characters as bytes
            // or none. Conversions from GGUF have a ByteLevel after the stages of SentencePiece; those stages then do
            // nothing.
            Some("ByteLevel") if !before.changes_bytes && is_of_bytes() => {}
            Some("ByteFallback") if !before.fused => {
                if before.found == Streaming::Prefix {
                    before.found = Streaming::ByteRuns;
                }
            }
            Some("Fuse") => before.fused = true,
            // After the stage Fuse has joined the texts of all tokens, a pattern of several characters may span two
            // tokens.
            Some("Replace") => {
                let literal = stage.pointer("/pattern/String").and_then(Value::as_str);
                if before.fused && literal.is_none_or(|p| p.chars().count() != 1) {
                    before.found = Streaming::Whole;
                }
                before.changes_bytes |= literal.is_none_or(|p| p.chars().all(|c| ByteLevel::alphabet().contains(&c)));
            }
            Some("Strip") if stage.get("stop").and_then(Value::as_u64) == Some(0) => {}
            _ => before.found = Streaming::Whole,
        }
    }
    let mut stages = Stages { fused: false, changes_bytes: false, found: Streaming::Prefix };
    merge(decoder, &mut stages, &is_of_bytes);
    stages.found
}
