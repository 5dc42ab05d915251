// Fuzzes the config.json of a model or of an EAGLE-3 head. The loader must be able to plan memory for an accepted
// configuration. Written and read again, the configuration must be the same.
#include <algorithm>
#include <cstdlib>
#include <string_view>

#include "base/schema/draft_kind.h"
#include "engine/config/config.h"
#include "engine/config/eagle_config.h"

namespace {

using namespace specdec;
using namespace specdec::model;

void require(bool ok) {
  if (!ok) std::abort();
}

void check(const DecoderConfig& c) {
  for (const int64_t size : {c.vocab_size, c.hidden_size, c.intermediate_size, c.max_position})
    require(size >= 1 && size <= 1 << 30);
  require(c.num_layers >= 1 && c.num_layers <= 1024 && c.layers.size() == static_cast<size_t>(c.num_layers));
  require(c.num_kv_heads >= 1 && c.num_heads >= c.num_kv_heads && c.num_heads % c.num_kv_heads == 0);
  require(c.head_dim >= 2 && c.head_dim % 2 == 0 && c.head_dim <= 1024);
  for (const RopeConfig& rope : {c.rope, c.local_rope}) {
    require(rope.theta >= 1 && rope.high_freq_factor > rope.low_freq_factor && rope.original_max_position >= 1 &&
            rope.factor > 0);
    require(rope.rotary_fraction > 0 && rope.rotary_fraction <= 1 && rope.attention_factor >= 0 &&
            rope.short_factor.size() == rope.long_factor.size());
  }
  require(c.attention_scalar >= 0 && c.attention_soft_cap >= 0 && c.final_soft_cap >= 0);
  require(c.num_experts * c.num_layers <= 65536 && c.experts_per_token <= c.num_experts);
  for (const LayerConfig& layer : c.layers) require(layer.window >= 0 && (!layer.experts || c.experts_per_token >= 1));
  require(c.bos_id >= -1 && c.bos_id < c.vocab_size);
  require(std::all_of(c.eos_ids.begin(), c.eos_ids.end(), [&](int32_t id) { return id >= 0 && id < c.vocab_size; }));
  const Json written = to_json(c);
  require(to_json(parse_decoder_config(written, "again")) == written);
}

// Reads a head for a target of eight layers that is as wide as the head itself.
void check_eagle(const Json& json) {
  const Json& layer = json.contains("transformer_layer_config") ? json["transformer_layer_config"] : json;
  DecoderConfig target;
  target.num_layers = 8;
  target.vocab_size = json_int(layer, "vocab_size", {1, 1 << 24}, "fuzz", ErrorKind::kModel);
  target.hidden_size = json_int(layer, "hidden_size", {1, 1 << 16}, "fuzz", ErrorKind::kModel);
  const EagleConfig c = parse_eagle_config(json, target, "fuzz");
  check(c.layer);
  require(c.layer.num_layers == 1 && c.draft_vocab_size >= 1 && c.draft_vocab_size <= c.layer.vocab_size);
  require(!c.taps.empty() && c.taps.front() >= 0 && c.taps.back() <= 8);
  const Json written = to_json(c);
  require(to_json(parse_eagle_config(written, target, "again")) == written);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  DecoderConfig config;
  try {
    const Json json = parse_json({reinterpret_cast<const char*>(data), size}, "fuzz", ErrorKind::kModel);
    if (kind_of_draft(json, {}) == DraftKind::kEagle3) {
      check_eagle(json);
      return 0;
    }
    config = parse_decoder_config(json, "fuzz");
  } catch (const Error& e) {
    require(e.kind() == ErrorKind::kModel);
    return 0;
  }
  check(config);
  return 0;
}
