// Fuzzes a model's config.json. An accepted configuration has a shape that the loader can plan for, and is written and
// read again to the same value.
#include <algorithm>
#include <cstdlib>
#include <string_view>

#include "engine/model/config.h"

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

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  DecoderConfig config;
  try {
    config = parse_decoder_config(parse_json({reinterpret_cast<const char*>(data), size}, "fuzz", ErrorKind::kModel),
                                  "fuzz");
  } catch (const Error& e) {
    require(e.kind() == ErrorKind::kModel);
    return 0;
  }
  check(config);
  return 0;
}
