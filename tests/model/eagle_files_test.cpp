// Writes EAGLE-3 heads and their outputs for tests/package/engines/eagle_loaders_test.py.
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <sstream>

#include "base/safetensors.h"
#include "engine/forward/eagle_forward.h"
#include "engine/kernels/ops.h"
#include "engine/weights/draft_vocab.h"

namespace specdec::model {
namespace {

namespace fs = std::filesystem;

DecoderConfig small_target(int64_t layers) {
  DecoderConfig c;
  c.model_type = "llama";
  c.vocab_size = 70, c.hidden_size = 16, c.intermediate_size = 24, c.num_layers = layers, c.num_heads = 4,
  c.num_kv_heads = 2, c.head_dim = 8, c.max_position = 64;
  c.layers.resize(static_cast<size_t>(layers));
  c.eos_ids = {2};
  c.bos_id = 1;
  c.rope = {.kind = RopeConfig::Kind::kLlama3, .theta = 500, .factor = 8, .original_max_position = 32};
  return c;
}

std::span<const std::byte> bytes_of(const at::Tensor& t) {
  return {static_cast<const std::byte*>(t.const_data_ptr()), t.nbytes()};
}

// Writes the head in both layouts, and the inputs and outputs of one pass over a row of tokens. Inputs: the target's
// tokens, the token after each of them, and tapped hidden states. Outputs: the states that the head feeds back, and
// logits of all ids.
void write_case(const fs::path& to, const EagleHead& head, const Decoder& target) {
  for (const char* name : {"plain", "speculators"}) fs::create_directories(to / name);
  save_eagle_head(head, to / "plain");
  save_as_speculators(head, {"org/target", "LlamaForCausalLM", 4}, to / "speculators");
  const DecoderConfig& config = head.config.layer;
  const int64_t length = 12;
  at::Tensor tokens = at::arange(1, length + 2, at::kLong).mul(7).remainder(config.vocab_size);
  TapReader reader(head.config);
  last_hidden(target, {tokens.unsqueeze(0), {}, {}}, reader.observer());
  const at::Tensor taps = reader.rows().slice(1, 0, length), next = tokens.slice(0, 1).contiguous(),
                   read = tokens.slice(0, 0, length).contiguous();
  const auto attend = [&](const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
    return kernels::diagonal_attention(q, {k.transpose(1, 2), v.transpose(1, 2)}, {}, config.attention_scale());
  };
  const EagleOutput out = eagle_forward(
      head, {next.unsqueeze(0), fuse_taps(head, taps), at::arange(length, at::kLong).unsqueeze(0), 0}, attend);
  const at::Tensor logits =
      spread_logits(eagle_logits(head, out.normed), config.draft_vocab, config.vocab_size).to(at::kFloat).contiguous();
  const at::Tensor fed_back = out.fed_back.to(at::kFloat).contiguous(),
                   states = taps.squeeze(0).to(at::kFloat).contiguous(),
                   embedding = target.weights.embed.to(at::kFloat).contiguous();
  write_safetensors(to / "expected.safetensors",
                    {{"target_tokens", "I64", read.sizes().vec(), bytes_of(read)},
                     {"tokens", "I64", next.sizes().vec(), bytes_of(next)},
                     {"states", "F32", states.sizes().vec(), bytes_of(states)},
                     {"embedding", "F32", embedding.sizes().vec(), bytes_of(embedding)},
                     {"fed_back", "F32", fed_back.squeeze(0).sizes().vec(), bytes_of(fed_back)},
                     {"logits", "F32", logits.squeeze(0).sizes().vec(), bytes_of(logits)}});
}

struct Variant {
  const char* name;
  int64_t layers;
  bool reduced;
  void (*change)(EagleConfig&);
};

void write_variant(const fs::path& directory, const Variant& variant) {
  const Decoder target = random_decoder(small_target(variant.layers), 1, at::kCPU, at::kFloat);
  std::vector<int32_t> ids;
  if (variant.reduced) ids = {1, 2, 3, 7, 11, 39, 69};
  EagleHead head = new_eagle_head(target, ids, 3, at::kFloat);
  variant.change(head.config);
  const auto some_norm = [&](int64_t n) { return at::linspace(0.5, 1.5, n); };
  if (head.config.norm_before_fc)
    head.weights.taps_norm = some_norm(head.config.num_taps() * head.config.target_hidden_size);
  if (head.config.fc_norm)
    head.weights.tap_norms.assign(head.config.taps.size(), some_norm(head.config.target_hidden_size));
  head.weights.hidden_norm = some_norm(head.config.layer.hidden_size);
  save_decoder(target,
               (fs::create_directories(directory / variant.name / "target"), directory / variant.name / "target"));
  write_case(directory / variant.name, head, target);
}

// SPECDEC_EAGLE_WRITE names the folder to write. It gets heads with random weights, and the trained heads that
// SPECDEC_EAGLE_HEADS lists as NAME=HEAD=TARGET, separated by colons.
TEST(EagleFiles, ForTheEnginesLoaders) {
  const char* directory = std::getenv("SPECDEC_EAGLE_WRITE");
  if (!directory) GTEST_SKIP() << "SPECDEC_EAGLE_WRITE=DIR writes heads there for eagle_loaders_test.py";
  for (const Variant& variant : {
           Variant{"whole", 8, false, [](EagleConfig&) {}},
           Variant{"reduced", 8, true, [](EagleConfig&) {}},
           Variant{"shallow", 5, true, [](EagleConfig&) {}},
           Variant{"norm_before_fc", 8, true, [](EagleConfig& c) { c.norm_before_fc = true; }},
           Variant{"fc_norm", 8, true, [](EagleConfig& c) { c.fc_norm = c.norm_output = true; }},
           Variant{"norm_before_residual", 8, false, [](EagleConfig& c) { c.norm_before_residual = true; }},
       })
    write_variant(directory, variant);
  const char* trained = std::getenv("SPECDEC_EAGLE_HEADS");
  std::stringstream entries(trained ? trained : "");
  for (std::string entry; std::getline(entries, entry, ':');) {
    const size_t a = entry.find('='), b = entry.rfind('=');
    ASSERT_LT(a, b) << entry;
    const fs::path path = entry.substr(b + 1), to = fs::path(directory) / entry.substr(0, a);
    const Decoder target = load_decoder(path, at::kCPU, at::kFloat);
    write_case(to, load_eagle_head(entry.substr(a + 1, b - a - 1), target, at::kCPU, at::kFloat), target);
    save_decoder(target, (fs::create_directories(to / "target"), to / "target"));
  }
}

}  // namespace
}  // namespace specdec::model
