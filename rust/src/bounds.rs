//! Rewrites numeric bounds in a JSON schema where llguidance 1.9.1 would allow more than the schema does. The rewritten
//! schema never allows more than the original. It may allow less, but only excludes numbers within a few units in the
//! last place of a bound.

use serde_json::{Map, Number, Value};

use crate::Failure;

/// Members of a schema whose values are data and not schemas.
const DATA: [&str; 4] = ["const", "enum", "default", "examples"];
/// Members of a schema whose values are objects that map any name to a schema.
const NAMED: [&str; 5] = ["properties", "patternProperties", "dependentSchemas", "$defs", "definitions"];
/// Integers up to this size are exact in a double, the type in which llguidance keeps numbers.
const EXACT: i128 = 1 << 53;

/// Rewrites the bounds of `schema` and of all schemas inside it, so that llguidance accepts no number that the schema
/// excludes. Refuses bounds for which this is impossible.
pub fn make_sound(schema: &mut Value) -> Result<(), Failure> {
    match schema {
        Value::Array(items) => items.iter_mut().try_for_each(make_sound),
        Value::Object(fields) => {
            sound_bounds(fields)?;
            for (name, value) in fields.iter_mut() {
                match (name.as_str(), value) {
                    ("const" | "enum", value) => exact_data(value)?,
                    (name, _) if DATA.contains(&name) => {}
                    (name, Value::Object(schemas)) if NAMED.contains(&name) => {
                        schemas.values_mut().try_for_each(make_sound)?
                    }
                    (_, value) => make_sound(value)?,
                }
            }
            Ok(())
        }
        _ => Ok(()),
    }
}

fn sound_bounds(fields: &mut Map<String, Value>) -> Result<(), Failure> {
    // Draft 4 writes `"exclusiveMinimum": true` beside the minimum.
    for (flag, bound) in [("exclusiveMinimum", "minimum"), ("exclusiveMaximum", "maximum")] {
        match fields.get(flag) {
            Some(Value::Bool(true)) => match fields.remove(bound) {
                Some(value) => fields.insert(flag.into(), value),
                None => fields.remove(flag),
            },
            Some(Value::Bool(false)) => fields.remove(flag),
            _ => None,
        };
    }
    let whole = fields.get("type").is_some_and(|t| t == "integer");
    for (name, up, exclusive) in [
        ("minimum", true, false),
        ("maximum", false, false),
        ("exclusiveMinimum", true, true),
        ("exclusiveMaximum", false, true),
    ] {
        let Some(Value::Number(number)) = fields.get(name) else { continue };
        let mut bound = held(number, up)?;
        if exclusive && !whole && bound.fract() == 0.0 {
            bound = beside(bound, up).ok_or_else(|| {
                Failure::invalid(format!(
                    "{name}: expected a bound below 2^49, or type integer beside it, found {number}"
                ))
            })?;
        }
        // A bound that has not changed is written as in the original.
        if number.as_f64() != Some(bound) || !is_exact(number) {
            fields.insert(name.into(), Number::from_f64(bound).map_or(Value::Null, Value::Number));
        }
    }
    Ok(())
}

fn integer(number: &Number) -> Option<i128> {
    number.as_i64().map(i128::from).or(number.as_u64().map(i128::from))
}

fn is_exact(number: &Number) -> bool {
    integer(number).is_none_or(|n| n.abs() <= EXACT || n as f64 as i128 == n)
}

/// Returns the double that stands for a bound: the nearest double that allows no number beyond the bound. llguidance
/// itself would use the nearest of all doubles, which may allow numbers beyond the bound.
fn held(number: &Number, up: bool) -> Result<f64, Failure> {
    let nearest = number.as_f64().unwrap_or(f64::NAN);
    let Some(exact) = integer(number).filter(|_| !is_exact(number)) else { return Ok(nearest) };
    let outside = if up { (nearest as i128) < exact } else { (nearest as i128) > exact };
    let inner = match (outside, up) {
        (false, _) => nearest,
        (true, true) => nearest.next_up(),
        (true, false) => nearest.next_down(),
    };
    // llguidance counts in signed 64-bit integers.
    if up && inner >= i64::MAX as f64 {
        return Err(Failure::invalid(format!("a minimum of {number}, at most 2^63 is taken")));
    }
    Ok(inner)
}

/// Returns a bound moved slightly inwards, so that it excludes the integer `bound` and almost no other number.
/// llguidance handles an exclusive bound wrongly: it accepts the excluded integer if the other bound is less than 1
/// away. Returns None where doubles are too sparse.
fn beside(bound: f64, up: bool) -> Option<f64> {
    let step = bound.abs().max(1.0) / (1u64 << 50) as f64;
    (step < 0.5).then_some(if up { bound + step } else { bound - step })
}

/// Refuses integers that llguidance would round to another integer.
fn exact_data(value: &Value) -> Result<(), Failure> {
    match value {
        Value::Number(number) if !is_exact(number) => Err(Failure::invalid(format!(
            "const and enum: expected integers that a double holds exactly, found {number}"
        ))),
        Value::Array(items) => items.iter().try_for_each(exact_data),
        Value::Object(fields) => fields.values().try_for_each(exact_data),
        _ => Ok(()),
    }
}
