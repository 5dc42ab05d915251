// Tests reading, writing and refusing EAGLE-3 heads, and on which earlier rows and hidden states a row of their passes
// depends.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "base/file.h"
#include "engine/forward/eagle_forward.h"
#include "engine/kernels/ops.h"
#include "tests/base/scratch.h"

namespace specdec::model {
namespace {

using specdec::testing::error_of;
using specdec::testing::Scratch;

DecoderConfig eagle_target_config(int64_t layers = 8) {
  DecoderConfig c;
  c.model_type = "llama";
  c.vocab_size = 40, c.hidden_size = 16, c.intermediate_size = 24, c.num_layers = layers, c.num_heads = 4,
  c.num_kv_heads = 2, c.head_dim = 6;
  c.layers.resize(static_cast<size_t>(layers));
  c.eos_ids = {2};
  c.bos_id = 1;
  c.rope = {.kind = RopeConfig::Kind::kLlama3, .theta = 500, .factor = 8, .original_max_position = 64};
  return c;
}

Decoder eagle_target(int64_t layers = 8) {
  return random_decoder(eagle_target_config(layers), 1, at::kCPU, at::kFloat);
}

std::vector<int32_t> some_ids() { return {1, 2, 3, 7, 11, 39}; }

void expect_same(EagleHead& a, EagleHead& b) {
  std::map<std::string, at::Tensor> tensors;
  a.weights.visit(a.config, [&](const std::string& name, at::Tensor& tensor) { tensors[name] = tensor; });
  b.weights.visit(b.config, [&](const std::string& name, at::Tensor& tensor) {
    ASSERT_TRUE(tensors.contains(name)) << name;
    EXPECT_TRUE(at::equal(tensors[name], tensor)) << name;
    tensors.erase(name);
  });
  EXPECT_TRUE(tensors.empty());
  EXPECT_EQ(a.config.layer.draft_vocab, b.config.layer.draft_vocab);
  EXPECT_EQ(a.config.taps, b.config.taps);
  EXPECT_EQ(a.config.norm_output, b.config.norm_output);
}

bool has_null(const Json& value) {
  if (value.is_null()) return true;
  if (!value.is_structured()) return false;
  return std::any_of(value.begin(), value.end(), has_null);
}

TEST(Eagle, PlainLayout) {
  const Scratch scratch;
  const Decoder target = eagle_target();
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    for (const bool reduced : {true, false}) {
      EagleHead head = new_eagle_head(target, reduced ? some_ids() : std::vector<int32_t>(), 3, dtype);
      head.config.norm_output = reduced;
      save_eagle_head(head, scratch.root());
      EagleHead read = load_eagle_head(scratch.root(), target, at::kCPU, dtype);
      expect_same(head, read);
      EXPECT_TRUE(read.weights.embed.is_alias_of(target.weights.embed));
      const Json config = read_json(scratch / "config.json");
      EXPECT_FALSE(has_null(config)) << config;
      EXPECT_EQ(config["architectures"], Json::array({"LlamaForCausalLMEagle3"}));
      EXPECT_EQ(config["draft_vocab_size"], reduced ? 6 : 40);
      EXPECT_EQ(config["norm_before_residual"], false);
      EXPECT_EQ(config["num_hidden_layers"], 1);
      EXPECT_EQ(config["rope_parameters"]["rope_type"], "llama3");
      EXPECT_EQ(config["rope_scaling"]["factor"], 8);
      EXPECT_EQ(config["eagle_config"], Json({{"use_aux_hidden_state", true}}));
      EXPECT_FALSE(config.contains("eagle_aux_hidden_state_layer_ids"));
      EXPECT_FALSE(config.contains("specdec_draft_vocab"));
      const SafetensorsDirectory files(scratch.root());
      EXPECT_FALSE(files.contains("embed_tokens.weight"));
      EXPECT_EQ(files.contains("d2t"), reduced);
      EXPECT_EQ(files.entry("fc.weight").shape, (std::vector<int64_t>{16, 48}));
      EXPECT_EQ(files.entry("midlayer.self_attn.k_proj.weight").shape, (std::vector<int64_t>{12, 32}));
      if (!reduced) continue;
      EXPECT_EQ(files.entry("d2t").dtype, "I64");
      EXPECT_EQ(files.entry("t2d").dtype, "BOOL");
      std::vector<int64_t> offsets(6);
      files.read("d2t", std::as_writable_bytes(std::span(offsets)));
      EXPECT_EQ(offsets, (std::vector<int64_t>{1, 1, 1, 4, 7, 34}));
    }
  }
}

TEST(Eagle, SpeculatorsLayout) {
  const Scratch scratch;
  const Decoder target = eagle_target(5);
  EagleHead head = new_eagle_head(target, some_ids(), 3, at::kFloat);
  save_as_speculators(head, {"org/target", "LlamaForCausalLM", 4}, scratch.root());
  EagleHead read = load_eagle_head(scratch.root(), target, at::kCPU, at::kFloat);
  expect_same(head, read);
  const Json config = read_json(scratch / "config.json");
  EXPECT_FALSE(has_null(config)) << config;
  EXPECT_FALSE(config.contains("model_type"));
  EXPECT_EQ(config["norm_before_residual"], false);
  EXPECT_EQ(config["transformer_layer_config"]["vocab_size"], 40);
  EXPECT_EQ(config["transformer_layer_config"]["num_hidden_layers"], 1);
  EXPECT_EQ(config["eagle_aux_hidden_state_layer_ids"], Json({1, 2, 4}));
  EXPECT_EQ(config["speculators_config"]["proposal_methods"][0]["speculative_tokens"], 4);
  EXPECT_TRUE(SafetensorsDirectory(scratch.root()).contains("layers.0.hidden_norm.weight"));
}

TEST(Eagle, TapsOfShallowTargetsAreNamed) {
  EXPECT_EQ(eagle_config_for(eagle_target_config(32)).taps, (std::vector<int64_t>{2, 16, 29}));
  EXPECT_TRUE(eagle_config_for(eagle_target_config(7)).default_taps);
  const EagleConfig shallow = eagle_config_for(eagle_target_config(6));
  EXPECT_EQ(shallow.taps, (std::vector<int64_t>{1, 3, 5}));
  const Json config = to_json(shallow);
  EXPECT_EQ(config["eagle_aux_hidden_state_layer_ids"], Json({1, 3, 5}));
  EXPECT_EQ(config["eagle_config"]["eagle_aux_hidden_state_layer_ids"], Json({0, 2, 4}));
  EXPECT_EQ(parse_eagle_config(config, eagle_target_config(6), "c").taps, shallow.taps);
  EXPECT_NE(error_of([] { eagle_config_for(eagle_target_config(3)); }, ErrorKind::kUsage).find("at least 4"),
            std::string::npos);
}

TEST(Eagle, TargetsWhoseRopeVariesWithTheTextAreRefused) {
  for (const auto kind : {RopeConfig::Kind::kDynamic, RopeConfig::Kind::kLongRope}) {
    DecoderConfig target = eagle_target_config();
    const Json good = to_json(eagle_config_for(target));
    target.rope.kind = kind;
    EXPECT_NE(error_of([&] { eagle_config_for(target); }, ErrorKind::kUsage).find("dynamic or longrope"),
              std::string::npos);
    EXPECT_NE(error_of([&] { parse_eagle_config(good, target, "c"); }, ErrorKind::kModel).find("dynamic or longrope"),
              std::string::npos);
  }
}

// Changes one key of a good config.json at a time, and expects an error that names the key.
TEST(Eagle, ConfigsAreChecked) {
  const DecoderConfig target = eagle_target_config();
  const Json good = to_json(eagle_config_for(target));
  EXPECT_NO_THROW(parse_eagle_config(good, target, "c"));
  const auto error = [&](const Json& patch) {
    Json config = good;
    config.merge_patch(patch);
    for (const auto& [key, value] : patch.items())
      if (value == "null") config[key] = nullptr;
    return error_of([&] { parse_eagle_config(config, target, "here/config.json"); }, ErrorKind::kModel);
  };
  const std::pair<Json, const char*> cases[] = {
      {{{"vocab_size", 41}}, "vocab_size: expected the target's 40"},
      {{{"draft_vocab_size", 41}}, "draft_vocab_size"},
      {{{"draft_vocab_size", "null"}}, "draft_vocab_size: null"},
      {{{"use_cache", "null"}}, "use_cache: null"},
      {{{"target_hidden_size", "null"}}, "target_hidden_size: null"},
      {{{"target_hidden_size", 32}}, "hidden states of 32 values, the target's have 16"},
      {{{"num_hidden_layers", 2}}, "num_hidden_layers: expected 1, found 2"},
      {{{"tie_word_embeddings", true}}, "tie_word_embeddings true"},
      {{{"attention_bias", true}}, "attention_bias true"},
      {{{"bias", true}}, "bias true"},
      {{{"norm_before_fc", true}, {"fc_norm", true}}, "exclude each other"},
      {{{"rope_theta", 77}}, "rope"},
      {{{"architectures", {"Eagle3Qwen3ForCausalLM"}}}, "architectures"},
      {{{"model_type", "qwen3"}}, "model_type 'qwen3'"},
      {{{"num_aux_hidden_states", 2}}, "num_aux_hidden_states: 2"},
      {{{"eagle_config", {{"use_aux_hidden_state", false}}}}, "use_aux_hidden_state false"},
      {{{"eagle_config", {{"parallel_draft_step", 4}}}}, "P-EAGLE"},
      {{{"eagle_aux_hidden_state_layer_ids", {2, 4, 9}}}, "eagle_aux_hidden_state_layer_ids"},
      {{{"eagle_aux_hidden_state_layer_ids", {4, 2, 5}}}, "ascending"},
      {{{"eagle_aux_hidden_state_layer_ids", {2, 4, 5}},
        {"eagle_config", {{"eagle_aux_hidden_state_layer_ids", {2, 4, 5}}}}},
       "less 1"},
  };
  for (const auto& [patch, expected] : cases) {
    const std::string found = error(patch);
    EXPECT_NE(found.find(expected), std::string::npos) << patch << ": " << found;
    EXPECT_NE(found.find("here/config.json"), std::string::npos) << found;
  }
  EXPECT_EQ(parse_eagle_config(good, target, "c").taps, (std::vector<int64_t>{2, 4, 5}));
}

// Saves a valid head, replaces or drops one of its tensors, and returns the error of loading the head.
struct SavedEagle {
  Scratch scratch;
  Decoder target = eagle_target();
  EagleHead head = new_eagle_head(target, some_ids(), 3, at::kFloat);

  std::string error_with(const std::string& name, const at::Tensor& tensor, bool drop = false) {
    save_eagle_head(head, scratch.root());
    std::map<std::string, at::Tensor> tensors;
    {
      const SafetensorsFile file(scratch / "model.safetensors");
      for (const auto& [key, entry] : file.tensors()) {
        const at::ScalarType dtype = entry.dtype == "I64" ? at::kLong : entry.dtype == "BOOL" ? at::kBool : at::kFloat;
        tensors[key] = at::empty(entry.shape, dtype);
        file.read(entry, {static_cast<std::byte*>(tensors[key].data_ptr()), tensors[key].nbytes()});
      }
    }
    tensors[name] = tensor;
    if (drop) tensors.erase(name);
    std::vector<TensorToWrite> out;
    for (const auto& [key, value] : tensors) {
      const char* dtype = value.scalar_type() == at::kLong    ? "I64"
                          : value.scalar_type() == at::kBool  ? "BOOL"
                          : value.scalar_type() == at::kFloat ? "F32"
                                                              : "I32";
      out.push_back(
          {key, dtype, value.sizes().vec(), {static_cast<const std::byte*>(value.const_data_ptr()), value.nbytes()}});
    }
    write_safetensors(scratch / "model.safetensors", out);
    return error_of([&] { load_eagle_head(scratch.root(), target, at::kCPU, at::kFloat); }, ErrorKind::kModel);
  }
};

TEST(Eagle, TensorsAreChecked) {
  SavedEagle saved;
  const auto expect = [&](const std::string& name, const at::Tensor& tensor, const char* message, bool drop = false) {
    const std::string found = saved.error_with(name, tensor, drop);
    EXPECT_NE(found.find(message), std::string::npos) << name << ": " << found;
  };
  const auto ids = [](std::vector<int64_t> values) { return at::tensor(values, at::kLong); };
  expect("fc.weight", at::zeros({16, 32}), "fc.weight has shape [16, 32], config.json asks for [16, 48]");
  expect("lm_head.weight", {}, "lm_head.weight is missing", true);
  expect("norm.weight", at::full({16}, std::numeric_limits<float>::quiet_NaN()), "NaN");
  expect("midlayer.self_attn.q_proj.bias", at::zeros({24}), "not part of the EAGLE-3 head");
  expect("d2t", {}, "d2t is missing", true);
  expect("d2t", at::zeros({6}, at::kInt), "d2t: expected 6 values of I64, found I32");
  expect("d2t", ids({1, 1, 1, 4, 7}), "d2t: expected 6 values");
  expect("d2t", ids({1, 1, 1, 0, 7, 34}), "d2t[3] = 0: expected offsets that give ascending ids below 40");
  expect("d2t", ids({1, 1, 1, 4, 7, 35}), "d2t[5] = 35");
  expect("d2t", ids({-1, 1, 1, 4, 7, 34}), "d2t[0] = -1");
  expect("d2t", ids({1, 1, 1, 4, 7, std::numeric_limits<int64_t>::max()}), "d2t[5]");
  expect("d2t", ids({1, 1, 1, 4, 7, 33}), "t2d marks other ids");
  expect("t2d", at::zeros({40}, at::kFloat), "t2d: expected 40 values of BOOL, found F32");
  expect("embed_tokens.weight", at::zeros({40, 16}), "embed_tokens.weight is not the target's embedding");
}

// A head that is narrower than the target keeps its own embedding.
TEST(Eagle, Embeddings) {
  const Scratch scratch;
  const Decoder target = eagle_target();
  EagleHead head = new_eagle_head(target, some_ids(), 3, at::kFloat);
  DecoderConfig& layer = head.config.layer;
  layer.hidden_size = 12;
  at::manual_seed(1);
  const int64_t q = layer.num_heads * layer.head_dim, kv = layer.num_kv_heads * layer.head_dim;
  EagleWeights& w = head.weights;
  w.fc = at::randn({12, 48}), w.layer.q = at::randn({q, 24}), w.layer.k = at::randn({kv, 24}),
  w.layer.v = at::randn({kv, 24}), w.layer.o = at::randn({12, q}), w.layer.gate = at::randn({24, 12}),
  w.layer.up = at::randn({24, 12}), w.layer.down = at::randn({12, 24}), w.lm_head = at::randn({6, 12}),
  w.layer.input_norm = w.layer.mlp_norm = w.hidden_norm = w.norm = at::ones({12});
  w.embed = at::randn({40, 12});
  save_eagle_head(head, scratch.root());
  EXPECT_EQ(read_json(scratch / "config.json")["target_hidden_size"], 16);
  EagleHead read = load_eagle_head(scratch.root(), target, at::kCPU, at::kFloat);
  expect_same(head, read);
  EXPECT_TRUE(at::equal(read.weights.embed, w.embed));
  EXPECT_EQ(num_parameters(head.config), [&] {
    int64_t count = 0;
    w.visit(head.config, [&](const std::string&, at::Tensor& t) { count += t.numel(); });
    return count;
  }());
}

// A row of a head's pass depends only on its own token and hidden state and on earlier rows.
TEST(Eagle, RowsSeeThePastAlone) {
  const Decoder target = eagle_target();
  const EagleHead head = new_eagle_head(target, {}, 3, at::kFloat);
  at::manual_seed(2);
  const at::Tensor tokens = at::randint(0, 40, {1, 9}, at::kLong), hidden = at::randn({1, 9, 16});
  const auto run = [&](const at::Tensor& ids, const at::Tensor& states) {
    return eagle_forward(head, {ids, states, at::arange(9), 0},
                         [&](const auto& q, const auto& k, const auto& v) {
                           return kernels::attention(q, k.transpose(1, 2), v.transpose(1, 2));
                         })
        .normed;
  };
  const at::Tensor before = run(tokens, hidden);
  at::Tensor other_tokens = tokens.clone(), other_hidden = hidden.clone();
  other_tokens[0][4] = (tokens[0][4] + 1).remainder(40);
  other_hidden[0][6] += 1;
  const at::Tensor by_token = run(other_tokens, hidden), by_state = run(tokens, other_hidden);
  const auto differs = [&](const at::Tensor& after, int64_t row) {
    return !at::allclose(after[0][row], before[0][row], 1e-5, 1e-6);
  };
  for (int64_t row = 0; row < 9; ++row) {
    EXPECT_EQ(differs(by_token, row), row >= 4) << row;
    EXPECT_EQ(differs(by_state, row), row >= 6) << row;
  }
}

// A tap is the target's residual stream after a given number of layers; 0 layers gives the embedding.
TEST(Eagle, TapsAreTheStatesAfterTheirLayers) {
  const Decoder target = eagle_target();
  const EagleConfig config = eagle_config_for(target.config);
  const at::Tensor tokens = at::arange(5).unsqueeze(0);
  TapReader reader(config);
  last_hidden(target, {tokens, {}, {}}, reader.observer());
  const at::Tensor rows = reader.rows();
  ASSERT_EQ(rows.sizes(), (at::IntArrayRef{1, 5, 48}));
  for (size_t i = 0; i < 3; ++i) {
    Decoder first = target;
    first.config.num_layers = config.taps[i];
    first.config.layers.resize(static_cast<size_t>(config.taps[i]));
    first.weights.layers.resize(static_cast<size_t>(config.taps[i]));
    EXPECT_TRUE(at::allclose(rows.narrow(-1, 16 * static_cast<int64_t>(i), 16), last_hidden(first, {tokens, {}, {}})));
  }
}

}  // namespace
}  // namespace specdec::model
