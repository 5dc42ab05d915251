// Parses and writes the rope settings of config.json: `rope_theta` and `rope_scaling` of transformers 4, and
// `rope_parameters` of transformers 5.
#include <cmath>

#include "engine/config/families.h"

namespace specdec::model {

namespace {

constexpr ErrorKind kRopeError = ErrorKind::kModel;

[[noreturn]] void fail_rope(const std::string& where, const std::string& message) {
  throw Error(kRopeError, where + ": " + message);
}

constexpr std::pair<const char*, RopeConfig::Kind> kRopeTypes[] = {
    {"default", RopeConfig::Kind::kDefault},   {"linear", RopeConfig::Kind::kLinear},
    {"dynamic", RopeConfig::Kind::kDynamic},   {"yarn", RopeConfig::Kind::kYarn},
    {"longrope", RopeConfig::Kind::kLongRope}, {"llama3", RopeConfig::Kind::kLlama3}};

bool has(const Json& object, const char* key) { return object.contains(key) && !object.at(key).is_null(); }

// The inputs of the parser besides the rope object: config.json, the family, and the default values.
struct RopeScope {
  const Json& config;
  const Family& family;
  double theta, rotary_fraction;  // defaults for keys that the rope object does not set
  int64_t max_position, head_dim;
};

RopeConfig::Kind parse_kind(const Json& rope, const Family& family, const std::string& where) {
  std::string type =
      json_string(rope, "rope_type", json_string(rope, "type", "default", where, kRopeError), where, kRopeError);
  // The first Phi-3 checkpoints call longrope "su" or "yarn".
  if (family.fused && (type == "su" || type == "yarn")) type = "longrope";
  std::string known;
  for (const auto& [name, kind] : kRopeTypes) {
    if (type == name) return kind;
    known += (known.empty() ? "" : ", ") + std::string(name);
  }
  fail_rope(where, "rope_type: '" + type + "' is not supported; supported: " + known);
}

int64_t original_max_position(const Json& rope, const RopeScope& scope, const std::string& where) {
  constexpr const char* kKey = "original_max_position_embeddings";
  const int64_t outside =
      json_int(scope.config, kKey, {.low = 1, .high = 1 << 30, .fallback = scope.family.original_max_position}, where,
               kRopeError);
  return outside != 0
             ? outside
             : json_int(rope, kKey, {.low = 1, .high = 1 << 30, .fallback = scope.max_position}, where, kRopeError);
}

double magnitude(double factor, double strength) { return factor <= 1 ? 1.0 : 0.1 * strength * std::log(factor) + 1.0; }

void parse_yarn(const Json& rope, const std::string& where, RopeConfig& out) {
  const auto number = [&](const char* key, double fallback) {  // 0 means the same as an absent key
    const double found = json_double(rope, key, {.low = 0, .high = 1000, .fallback = fallback}, where, kRopeError);
    return found == 0 ? fallback : found;
  };
  out.beta_fast = number("beta_fast", 32);
  out.beta_slow = number("beta_slow", 1);
  out.truncate = json_bool(rope, "truncate", true, where, kRopeError);
  const double some = number("mscale", 0), all = number("mscale_all_dim", 0);
  const double usual =
      some > 0 && all > 0 ? magnitude(out.factor, some) / magnitude(out.factor, all) : magnitude(out.factor, 1);
  out.attention_factor =
      json_double(rope, "attention_factor", {.low = 0, .high = 1e6, .fallback = usual}, where, kRopeError);
  if (out.theta <= 1) fail_rope(where, "yarn needs rope_theta above 1");
}

std::vector<double> parse_factors(const Json& rope, const char* key, int64_t count, const std::string& where) {
  const Json& list = json_array(rope, key, 512, where, kRopeError);
  if (list.size() != static_cast<size_t>(count))
    fail_rope(where, std::string(key) + ": expected " + std::to_string(count) +
                         " numbers (one for each turned pair of a head), found " + std::to_string(list.size()));
  std::vector<double> out;
  for (const Json& item : list) out.push_back(json_double(Json{{key, item}}, key, {1e-6, 1e6}, where, kRopeError));
  return out;
}

// Parses one rope object; an empty one means the default rope.
RopeConfig parse_rope_object(const Json& rope, const RopeScope& scope, const std::string& where) {
  if (!rope.is_object()) fail_rope(where, "expected an object");
  for (const auto& [key, value] : rope.items()) {
    if (value.is_object())
      fail_rope(where, "'" + key + "': rope settings per layer type are not supported for " +
                           std::string(scope.family.model_type));
  }
  RopeConfig out;
  out.theta = json_double(rope, "rope_theta", {.low = 1, .high = 1e12, .fallback = scope.theta}, where, kRopeError);
  out.rotary_fraction = json_double(rope, "partial_rotary_factor",
                                    {.low = 0, .high = 1, .fallback = scope.rotary_fraction}, where, kRopeError);
  if (!scope.family.partial_rotary && out.rotary_fraction != 1)
    fail_rope(where, "partial_rotary_factor: " + std::string(scope.family.model_type) +
                         " models turn whole heads in transformers, whatever it says, and other engines may turn a "
                         "part; leave it out, or set it to 1");
  const auto rotary = static_cast<int64_t>(static_cast<double>(scope.head_dim) * out.rotary_fraction);
  if (rotary < 2 || rotary % 2 != 0)
    fail_rope(where, "partial_rotary_factor: turns " + std::to_string(rotary) + " of the " +
                         std::to_string(scope.head_dim) + " values of a head; expected an even number");
  out.kind = parse_kind(rope, scope.family, where);
  if (out.kind == RopeConfig::Kind::kDefault) return out;
  if (out.kind == RopeConfig::Kind::kLongRope) {
    out.original_max_position = original_max_position(rope, scope, where);
    out.factor = json_double(
        rope, "factor",
        {.low = 1e-6,
         .high = 1e6,
         .fallback = static_cast<double>(scope.max_position) / static_cast<double>(out.original_max_position)},
        where, kRopeError);
    out.short_factor = parse_factors(rope, "short_factor", rotary / 2, where);
    out.long_factor = parse_factors(rope, "long_factor", rotary / 2, where);
    const double original = std::log(static_cast<double>(out.original_max_position));
    const double usual = out.factor <= 1 || original <= 0 ? 1.0 : std::sqrt(1 + std::log(out.factor) / original);
    out.attention_factor =
        json_double(rope, "attention_factor", {.low = 0, .high = 1e6, .fallback = usual}, where, kRopeError);
    return out;
  }
  out.factor = json_double(rope, "factor", {1, 1e6}, where, kRopeError);
  if (out.kind == RopeConfig::Kind::kDynamic) {
    out.original_max_position = scope.max_position;
    if (rotary < 4) fail_rope(where, "dynamic: expected at least 4 turned values of a head");
    return out;
  }
  if (out.kind == RopeConfig::Kind::kLinear) return out;
  out.original_max_position = original_max_position(rope, scope, where);
  if (out.kind == RopeConfig::Kind::kYarn) {
    parse_yarn(rope, where, out);
    return out;
  }
  out.low_freq_factor = json_double(rope, "low_freq_factor", {1e-6, 1e6}, where, kRopeError);
  out.high_freq_factor = json_double(rope, "high_freq_factor", {1e-6, 1e6}, where, kRopeError);
  if (out.high_freq_factor <= out.low_freq_factor)
    fail_rope(where, "high_freq_factor must be larger than low_freq_factor");
  return out;
}

Json rope_object(const RopeConfig& rope) {
  Json out = Json::object();
  for (const auto& [name, kind] : kRopeTypes) {
    if (kind == rope.kind) out["rope_type"] = name;
  }
  using Kind = RopeConfig::Kind;
  if (rope.rotary_fraction != 1) out["partial_rotary_factor"] = rope.rotary_fraction;
  if (rope.kind != Kind::kDefault) out["factor"] = rope.factor;
  if (rope.kind == Kind::kLlama3 || rope.kind == Kind::kYarn || rope.kind == Kind::kLongRope)
    out["original_max_position_embeddings"] = rope.original_max_position;
  if (rope.kind == Kind::kYarn || rope.kind == Kind::kLongRope) out["attention_factor"] = rope.attention_factor;
  if (rope.kind == Kind::kYarn)
    out.update(Json{{"beta_fast", rope.beta_fast}, {"beta_slow", rope.beta_slow}, {"truncate", rope.truncate}});
  if (rope.kind == Kind::kLongRope)
    out.update(Json{{"short_factor", rope.short_factor}, {"long_factor", rope.long_factor}});
  if (rope.kind == Kind::kLlama3)
    out.update(Json{{"low_freq_factor", rope.low_freq_factor}, {"high_freq_factor", rope.high_freq_factor}});
  return out;
}

}  // namespace

// Parses the older form (rope_theta, rope_scaling) and the newer one (rope_parameters). A file may have both, because
// some engines read only one of them. Throws Error(kModel) if they disagree, because two engines would then run
// different models.
void parse_rope(const Json& config, const Family& family, const std::string& where, DecoderConfig& out) {
  const RopeScope scope{
      config,
      family,
      json_double(config, "rope_theta", {.low = 1, .high = 1e12, .fallback = family.theta}, where, kRopeError),
      json_double(config, "partial_rotary_factor", {.low = 0, .high = 1, .fallback = 1.0}, where, kRopeError),
      out.max_position,
      out.head_dim};
  const RopeScope local_scope{
      config,
      family,
      json_double(config, "rope_local_base_freq", {.low = 1, .high = 1e12, .fallback = 10000.0}, where, kRopeError),
      scope.rotary_fraction,
      out.max_position,
      out.head_dim};
  const Json plain = Json::object();
  out.rope =
      parse_rope_object(has(config, "rope_scaling") ? config["rope_scaling"] : plain, scope, where + ": rope_scaling");
  if (family.local_rope) out.local_rope = parse_rope_object(plain, local_scope, where);
  if (!has(config, "rope_parameters")) return;
  const std::string at = where + ": rope_parameters";
  // Parses `object` (the newer form, rope_parameters) into `rope`, which so far holds the result of the older form
  // (rope_theta, rope_scaling). Throws if the older form is complete and its result differs from that of the newer
  // form. The older form is complete if it has a theta and a scaling; the scaling may be absent if the newer form is
  // the default rope.
  const auto take = [&](const Json& object, const std::string& name, const RopeScope& inner, const char* theta,
                        const char* scaling, RopeConfig& rope) {
    const RopeConfig newer = parse_rope_object(object, inner, name);
    const bool complete =
        has(config, theta) && ((scaling && has(config, scaling)) || newer.kind == RopeConfig::Kind::kDefault);
    if (complete && rope != newer)
      fail_rope(where, "rope_parameters and " + std::string(theta) + " / rope_scaling disagree");
    rope = newer;
  };
  const Json& newer = config["rope_parameters"];
  if (!family.local_rope) return take(newer, at, scope, "rope_theta", "rope_scaling", out.rope);
  if (!newer.is_object()) fail_rope(at, "expected an object");
  const auto part = [&](const char* type) -> const Json& { return has(newer, type) ? newer.at(type) : plain; };
  take(part("full_attention"), at + ": full_attention", scope, "rope_theta", "rope_scaling", out.rope);
  take(part("sliding_attention"), at + ": sliding_attention", local_scope, "rope_local_base_freq", nullptr,
       out.local_rope);
  if (out.local_rope.kind == RopeConfig::Kind::kDynamic || out.local_rope.kind == RopeConfig::Kind::kLongRope)
    fail_rope(at, "sliding_attention: a scaling that depends on the length (dynamic, longrope) is not supported there");
}

void write_rope(const DecoderConfig& config, const Family& family, Json& out) {
  Json rope = rope_object(config.rope);
  out["rope_theta"] = config.rope.theta;
  if (config.rope.rotary_fraction != 1) out["partial_rotary_factor"] = config.rope.rotary_fraction;
  // Some engines read original_max_position_embeddings only from the top level of config.json. Others prefer the value
  // at the top level if the model family has a default. So the value is written there, too.
  if (rope.contains("original_max_position_embeddings") &&
      (config.rope.kind == RopeConfig::Kind::kLongRope || family.original_max_position != 0))
    out["original_max_position_embeddings"] = config.rope.original_max_position;
  // transformers 5 reads rope_parameters. Older engines read rope_theta and rope_scaling; if rope_scaling is absent,
  // they use the default rope.
  if (config.rope.kind != RopeConfig::Kind::kDefault) out["rope_scaling"] = rope;
  rope["rope_theta"] = config.rope.theta;
  if (!family.local_rope) {
    out["rope_parameters"] = rope;
    return;
  }
  Json local = rope_object(config.local_rope);
  local["rope_theta"] = out["rope_local_base_freq"] = config.local_rope.theta;
  out["rope_parameters"] = {{"full_attention", rope}, {"sliding_attention", local}};
}

}  // namespace specdec::model
