//! Renders chat templates with the functions that transformers 5 offers to templates (utils/chat_template_utils.py), in
//! a bounded interpreter.

use std::collections::BTreeMap;
use std::ffi::{c_char, CString};
use std::io::{self, Write};

use minijinja::machinery::{
    eval, make_string_output, parse, CodeGenerator, Instruction, Instructions, Token, Tokenizer,
};
use minijinja::syntax::SyntaxConfig;
use minijinja::value::{from_args, Kwargs, Rest, Tuple, Value, ValueKind};
use minijinja::{escape_formatter, AutoEscape, Environment, Error, ErrorKind, State, UndefinedBehavior};
use minijinja_contrib::pycompat;

use crate::{python, tojson, Failure, Reason};

const MAX_SOURCE_BYTES: usize = 1 << 20;
const MAX_INDENTED_BYTES: usize = 1 << 20;
const MAX_INDENT: usize = 1 << 10;
const FUEL: u64 = 1_000_000;
const RECURSION: usize = 100;
const MAX_EXCERPT: usize = 80;
const NAME: &str = "chat_template";
/// Names of an internal block (WHOLE) and two internal filters. A template cannot contain such names, so they never
/// clash with names of the template.
const WHOLE: &str = "the whole";
const PERCENT: &str = "%";
const TILDE: &str = "~";
/// The cache index of a filter instruction that has not been executed yet.
const NOT_CACHED: u8 = !0;
/// Prefix of an error message made by raise_exception. It is stripped only once, so that a message that begins with the
/// same characters keeps them.
const RAISED: &str = "\u{1}raised:";

pub type Strftime = unsafe extern "C" fn(*const c_char, *mut c_char, usize) -> usize;

pub struct ChatTemplate {
    blocks: BTreeMap<&'static str, Instructions<'static>>,
    environment: Environment<'static>,
    source: Box<str>, // `blocks` borrow from it, so it must be dropped after them
}

impl ChatTemplate {
    /// Compiles a template. A source can make the compiler overflow its stack (a chain of 50,000 operators), fold
    /// constants of any size or take quadratic time. No setting bounds this, so compile an untrusted source in a child
    /// process first (text/chat_template.cpp, vet_template).
    pub fn compile(source: &str, clock: Option<Strftime>) -> Result<ChatTemplate, Failure> {
        if source.len() > MAX_SOURCE_BYTES {
            return Err(Failure::invalid(format!("{} bytes, at most {MAX_SOURCE_BYTES} are accepted", source.len())));
        }
        let mut environment = Environment::new();
        let syntax =
            SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build().map_err(|e| failure(e, source))?;
        environment.set_syntax(syntax.clone());
        environment.set_auto_escape_callback(|_| AutoEscape::None);
        environment.set_undefined_behavior(UndefinedBehavior::Lenient);
        environment.set_fuel(Some(FUEL));
        environment.set_recursion_limit(RECURSION);
        environment.set_unknown_method_callback(python_method);
        environment.set_formatter(|out, state, value| match value.kind() {
            ValueKind::Number | ValueKind::Seq | ValueKind::Map => {
                out.write_str(&python::text(value)?).map_err(Error::from)
            }
            _ => escape_formatter(out, state, value),
        });
        environment.add_filter("tojson", tojson::tojson);
        for name in ["e", "escape"] {
            environment.add_filter(name, |value: &Value| python::text(value).map(|text| escape(&text)));
        }
        environment.add_filter("string", python::text);
        environment.add_filter(PERCENT, python::percent);
        environment.add_filter(TILDE, |left: &Value, right: &Value| -> Result<String, Error> {
            Ok(python::text(left)? + &python::text(right)?)
        });
        environment.add_filter("format", |format: String, items: Rest<Value>, named: Kwargs| {
            let names: Vec<&str> = named.args().collect();
            let pairs =
                names.iter().map(|name| Ok((*name, named.get::<Value>(name)?))).collect::<Result<Vec<_>, Error>>()?;
            let right = if pairs.is_empty() {
                Value::from_object(Tuple::new(items.0))
            } else {
                Value::from(pairs.into_iter().collect::<BTreeMap<_, _>>())
            };
            python::percent(&Value::from(format), &right)
        });
        environment.add_filter("join", join);
        environment.add_filter("wordcount", |text: String| {
            text.split(|c: char| !is_word(c)).filter(|w| !w.is_empty()).count()
        });
        environment.add_filter("indent", indent);
        // minijinja counts the value none as iterable. Templates test `tools is iterable` before they take the length.
        environment.add_test("iterable", |value: &Value| !value.is_none() && value.try_iter().is_ok());
        environment.add_function("raise_exception", |message: Value| -> Result<Value, Error> {
            Err(Error::new(ErrorKind::InvalidOperation, format!("{RAISED}{message}")))
        });
        environment.add_function("strftime_now", move |format: String| strftime(clock, &format));
        let source = without_odd_floats(without_generation_tags(source), &syntax).into_boxed_str();
        // `source` is boxed, so the text does not move; it lives as long as the instructions, which stay in this
        // module.
        let text: &'static str = unsafe { &*std::ptr::from_ref::<str>(&source) };
        let blocks = compiled(text, syntax).map_err(|e| failure(e, &source))?;
        Ok(ChatTemplate { blocks, environment, source })
    }

    pub fn render(&self, context: &[u8], max_output: usize) -> Result<String, Failure> {
        let context: Value = serde_json::from_slice(context).map_err(|e| Failure::invalid(format!("context: {e}")))?;
        let mut out = Bounded { text: Vec::new(), limit: max_output, exceeded: false };
        let start = Instructions::new(NAME, &self.source);
        let result = eval(
            &self.environment,
            &start,
            context,
            &self.blocks,
            &mut make_string_output(&mut String::new()),
            AutoEscape::None,
        )
        .and_then(|(_, mut state)| state.render_block_to_write(WHOLE, &mut out));
        if out.exceeded {
            return Err(Failure::limit(format!("output: more than {max_output} bytes")));
        }
        result.map_err(|e| failure(e, &self.source))?;
        String::from_utf8(out.text).map_err(|_| Failure::invalid("output is not UTF-8"))
    }
}

/// Compiles a template to its blocks; WHOLE is the text outside of all blocks. `%` and `~` become filters, because
/// minijinja's `%` cannot format text and its `~` writes floats differently from Python.
fn compiled(
    source: &'static str,
    syntax: SyntaxConfig,
) -> Result<BTreeMap<&'static str, Instructions<'static>>, Error> {
    let tree = parse(source, NAME, syntax)?;
    let mut generator = CodeGenerator::new(NAME, source);
    generator.compile_stmt(&tree);
    let (whole, mut blocks) = generator.finish();
    blocks.insert(WHOLE, whole);
    for instructions in blocks.values_mut() {
        let mut at = 0;
        while let Some(instruction) = instructions.get_mut(at) {
            match instruction {
                Instruction::Rem => *instruction = Instruction::ApplyFilter(PERCENT, Some(2), NOT_CACHED),
                Instruction::StringConcat => *instruction = Instruction::ApplyFilter(TILDE, Some(2), NOT_CACHED),
                _ => {}
            }
            at += 1;
        }
    }
    Ok(blocks)
}

struct Bounded {
    text: Vec<u8>,
    limit: usize,
    exceeded: bool,
}

impl Write for Bounded {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if bytes.len() > self.limit.saturating_sub(self.text.len()) {
            self.exceeded = true;
            return Err(io::Error::other("output limit"));
        }
        self.text.extend_from_slice(bytes);
        Ok(bytes.len())
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Converts an error to one line of text: the line number in the template, and the reason. If the error or its
/// innermost cause comes from raise_exception, the message is the argument of that call. Failure::place quotes only the
/// template's source.
fn failure(error: Error, source: &str) -> Failure {
    let line = error.line().map_or(String::new(), |line| format!("line {line}: "));
    let part =
        error.range().and_then(|range| source.get(range)).map_or(String::new(), |part| format!(": {}", excerpt(part)));
    let at = |what: &str| format!("{line}{what}{part}");
    let mut cause: &dyn std::error::Error = &error;
    while let Some(next) = cause.source() {
        cause = next;
    }
    for e in [Some(&error), cause.downcast_ref::<Error>()].into_iter().flatten() {
        if let Some(message) = e.detail().and_then(|d| d.strip_prefix(RAISED)) {
            return Failure { reason: Reason::Raised, message: message.to_string(), place: at("raise_exception") };
        }
    }
    let reason = match error.kind() {
        ErrorKind::OutOfFuel => format!("more than {FUEL} steps"),
        kind => kind.to_string(),
    };
    let detail = match error.kind() {
        ErrorKind::OutOfFuel => String::new(),
        _ => error.detail().map_or(String::new(), |d| format!(": {d}")),
    };
    let limited =
        error.kind() == ErrorKind::OutOfFuel || detail.contains("recursion limit") || detail.contains("too deep");
    let reason_code = if limited { Reason::Limit } else { Reason::Invalid };
    Failure { reason: reason_code, message: format!("{line}{reason}{detail}"), place: at(&reason) }
}

fn excerpt(text: &str) -> String {
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    if text.chars().count() <= MAX_EXCERPT {
        text
    } else {
        text.chars().take(MAX_EXCERPT).collect::<String>() + "…"
    }
}

/// Appends the filter `float` to each float literal that minijinja writes differently from Python. Otherwise minijinja
/// could join the literal with a text at compile time, before our filter for `~` applies.
fn without_odd_floats(source: String, syntax: &SyntaxConfig) -> String {
    let mut out = String::with_capacity(source.len());
    let mut done = 0;
    let mut tokenizer = Tokenizer::new(&source, NAME, false, syntax.clone());
    while let Ok(Some((token, span))) = tokenizer.next_token() {
        if matches!(token, Token::Float(x) if python::float_text(x) != Value::from(x).to_string()) {
            let (begin, end) = (span.start_offset as usize, span.end_offset as usize);
            out.push_str(&source[done..begin]);
            out.push_str(&format!("({}|float)", &source[begin..end]));
            done = end;
        }
    }
    out.push_str(&source[done..]);
    out
}

/// Replaces `{% generation %}` … `{% endgeneration %}`, with which transformers marks assistant text, by a `with`
/// block, which has the same scope. The text inside is unchanged.
fn without_generation_tags(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(start) = rest.find("{%") {
        let (before, tag) = rest.split_at(start);
        out.push_str(before);
        let Some(end) = tag.find("%}") else {
            rest = tag;
            break;
        };
        let inner = &tag[2..end];
        let name = inner.trim_start_matches(['-', '+']).trim_end_matches(['-', '+']).trim();
        match name {
            "generation" => out.push_str(&format!("{{%{}%}}", inner.replace("generation", "with"))),
            "endgeneration" => out.push_str(&format!("{{%{}%}}", inner.replace("endgeneration", "endwith"))),
            _ => out.push_str(&tag[..end + 2]),
        }
        rest = &tag[end + 2..];
    }
    out.push_str(rest);
    out
}

fn strftime(clock: Option<Strftime>, format: &str) -> Result<String, Error> {
    let clock = clock.ok_or_else(|| Error::new(ErrorKind::InvalidOperation, "strftime_now: no clock"))?;
    let c_format =
        CString::new(format).map_err(|_| Error::new(ErrorKind::InvalidOperation, "strftime_now: NUL in the format"))?;
    let mut buffer = vec![0u8; 4096];
    let size = unsafe { clock(c_format.as_ptr(), buffer.as_mut_ptr() as *mut c_char, buffer.len()) };
    if size > buffer.len() {
        return Err(Error::new(ErrorKind::InvalidOperation, "strftime_now: the result is too long"));
    }
    buffer.truncate(size);
    Ok(String::from_utf8_lossy(&buffer).into_owned())
}

/// Adds the Python methods that templates on the Hub call but minijinja-contrib lacks.
fn python_method(state: &mut State, value: &Value, method: &str, args: &[Value]) -> Result<Value, Error> {
    if let (ValueKind::String, Some(s)) = (value.kind(), value.as_str()) {
        match method {
            // minijinja capitalises only after white space, Python after every character that is not a letter.
            "title" if args.is_empty() => {
                let mut out = String::with_capacity(s.len());
                let mut inside = false;
                for c in s.chars() {
                    if inside {
                        out.extend(c.to_lowercase());
                    } else {
                        out.extend(c.to_uppercase());
                    }
                    inside = c.is_alphabetic();
                }
                return Ok(Value::from(out));
            }
            "removeprefix" => {
                let (prefix,): (&str,) = from_args(args)?;
                return Ok(Value::from(s.strip_prefix(prefix).unwrap_or(s)));
            }
            "removesuffix" => {
                let (suffix,): (&str,) = from_args(args)?;
                return Ok(Value::from(s.strip_suffix(suffix).unwrap_or(s)));
            }
            "partition" => {
                let (separator,): (&str,) = from_args(args)?;
                let (head, middle, tail) = match s.split_once(separator) {
                    Some((head, tail)) => (head, separator, tail),
                    None => (s, "", ""),
                };
                return Ok(strings([head, middle, tail]));
            }
            "rpartition" => {
                let (separator,): (&str,) = from_args(args)?;
                let (head, middle, tail) = match s.rsplit_once(separator) {
                    Some((head, tail)) => (head, separator, tail),
                    None => ("", "", s),
                };
                return Ok(strings([head, middle, tail]));
            }
            "rsplit" => {
                let (separator, limit): (&str, Option<i64>) = from_args(args)?;
                let limit = limit.unwrap_or(-1);
                let mut pieces: Vec<&str> = if limit < 0 {
                    s.rsplit(separator).collect()
                } else {
                    s.rsplitn(limit as usize + 1, separator).collect()
                };
                pieces.reverse();
                return Ok(strings(pieces));
            }
            _ => {}
        }
    }
    pycompat::unknown_method_callback(state, value, method, args)
}

/// Escapes text for HTML with the entities that Jinja uses. minijinja uses others, and also escapes a slash.
fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '\'' => out.push_str("&#39;"),
            '"' => out.push_str("&#34;"),
            c => out.push(c),
        }
    }
    out
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

fn strings<'a>(items: impl IntoIterator<Item = &'a str>) -> Value {
    items.into_iter().map(Value::from).collect()
}

/// Implements `join`. minijinja's own `join` writes floats differently from Python.
fn join(value: &Value, joiner: Option<String>, attribute: Option<String>, named: Kwargs) -> Result<String, Error> {
    let joiner = named.get::<Option<String>>("d")?.or(joiner).unwrap_or_default();
    let attribute = named.get::<Option<String>>("attribute")?.or(attribute);
    named.assert_all_used()?;
    let mut out = String::new();
    for (index, mut item) in value.try_iter()?.enumerate() {
        for name in attribute.iter().flat_map(|path| path.split('.')) {
            item = name.parse::<usize>().map_or_else(|_| item.get_attr(name), |i| item.get_item_by_index(i))?;
        }
        out.push_str(if index > 0 { &joiner } else { "" });
        out.push_str(&python::text(&item)?);
    }
    Ok(out)
}

/// Implements `indent` as Jinja does, which keeps a newline at the end of the text. minijinja removes it.
fn indent(
    text: &str,
    width: Option<&Value>,
    first: Option<bool>,
    blank: Option<bool>,
    named: Kwargs,
) -> Result<String, Error> {
    let width = named.get::<Option<Value>>("width")?.or(width.cloned());
    let first = named.get::<Option<bool>>("first")?.or(first).unwrap_or(false);
    let blank = named.get::<Option<bool>>("blank")?.or(blank).unwrap_or(false);
    named.assert_all_used()?;
    let indention = match &width {
        None => " ".repeat(4),
        Some(width) => match (width.as_str(), width.as_usize()) {
            (Some(text), _) => text.to_string(),
            (None, Some(count)) if count <= MAX_INDENT => " ".repeat(count),
            _ => return Err(Error::new(ErrorKind::InvalidOperation, format!("indent: {width} is no width"))),
        },
    };
    // These are the line breaks of Python's str.splitlines().
    let is_break =
        |c: char| matches!(c, '\n' | '\r' | '\x0b' | '\x0c' | '\x1c'..='\x1e' | '\u{85}' | '\u{2028}' | '\u{2029}');
    let text = text.replace("\r\n", "\n");
    let mut out = String::new();
    for (index, line) in text.split(is_break).enumerate() {
        if index > 0 {
            out.push('\n');
        }
        let indented = if index == 0 { first } else { blank || !line.is_empty() };
        if indented {
            out.push_str(&indention);
        }
        out.push_str(line);
        if out.len() > MAX_INDENTED_BYTES {
            return Err(Error::new(
                ErrorKind::InvalidOperation,
                format!("indent: more than {MAX_INDENTED_BYTES} bytes"),
            ));
        }
    }
    Ok(out)
}
