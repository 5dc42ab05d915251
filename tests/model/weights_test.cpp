#include "engine/weights/weights.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "base/file.h"
#include "base/safetensors.h"
#include "engine/forward/eagle_forward.h"
#include "engine/forward/memory_plan.h"
#include "engine/weights/eagle_head.h"
#include "tests/base/scratch.h"
#include "tests/model/toy_decoders.h"

namespace specdec::model {
namespace {

using specdec::testing::Scratch;

DecoderConfig tiny(bool tied = false) {
  DecoderConfig c;
  c.model_type = "llama";
  c.vocab_size = 40, c.hidden_size = 16, c.intermediate_size = 24, c.num_layers = 2, c.num_heads = 4,
  c.num_kv_heads = 2, c.head_dim = 6;
  c.layers.assign(2, {.qkv_bias = true, .out_bias = true, .mlp_bias = true});
  c.tie_embeddings = tied;
  return c;
}

// A checkpoint in memory that tests can modify.
struct Stored {
  std::vector<std::string> names;
  std::vector<at::Tensor> tensors;
  explicit Stored(Decoder& decoder) {
    decoder.weights.visit(decoder.config, [&](const std::string& name, at::Tensor& tensor) {
      names.push_back(name);
      tensors.push_back(tensor.clone());
    });
  }
  at::Tensor& operator[](const std::string& name) {
    const auto at = std::find(names.begin(), names.end(), name);
    return tensors.at(static_cast<size_t>(at - names.begin()));
  }
  void add(const std::string& name, const at::Tensor& tensor) { names.push_back(name), tensors.push_back(tensor); }
  void write(const fs::path& file, size_t begin = 0, size_t end = SIZE_MAX) const {
    std::vector<TensorToWrite> out;
    for (size_t i = begin; i < std::min(end, names.size()); ++i) {
      const char* dtype = tensors[i].scalar_type() == at::kFloat  ? "F32"
                          : tensors[i].scalar_type() == at::kLong ? "I64"
                                                                  : "BF16";
      out.push_back({names[i],
                     dtype,
                     tensors[i].sizes().vec(),
                     {static_cast<const std::byte*>(tensors[i].const_data_ptr()), tensors[i].nbytes()}});
    }
    write_safetensors(file, out);
  }
};

std::string load_error(const fs::path& directory) {
  try {
    load_decoder(directory, at::kCPU, at::kFloat);
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), ErrorKind::kModel);
    return e.what();
  }
  return "loaded";
}

void expect_equal(Decoder& a, Decoder& b) {
  std::vector<at::Tensor> tensors;
  a.weights.visit(a.config, [&](const std::string&, at::Tensor& tensor) { tensors.push_back(tensor); });
  size_t i = 0;
  b.weights.visit(b.config, [&](const std::string& name, at::Tensor& tensor) {
    EXPECT_TRUE(at::equal(tensor, tensors.at(i++))) << name;
  });
  EXPECT_EQ(i, tensors.size());
}

TEST(Weights, SaveAndLoad) {
  for (const auto dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    for (const bool tied : {false, true}) {
      const Scratch scratch;
      Decoder saved = random_decoder(tiny(tied), 5, at::kCPU, dtype);
      save_decoder(saved, scratch.root());
      Decoder loaded =
          load_decoder(scratch.root(), at::kCPU, resolve_dtype("auto", load_decoder_config(scratch.root())));
      expect_equal(saved, loaded);
      EXPECT_EQ(loaded.weights.lm_head.is_same(loaded.weights.embed), tied);
      EXPECT_EQ(SafetensorsFile(scratch / "model.safetensors").tensors().contains("lm_head.weight"), !tied);
      int64_t count = 0;
      loaded.weights.visit(loaded.config, [&](const std::string&, at::Tensor& tensor) { count += tensor.numel(); });
      EXPECT_EQ(count, num_parameters(loaded.config));
    }
  }
}

TEST(Weights, ShardedAndConverted) {
  const Scratch scratch;
  Decoder saved = random_decoder(tiny(), 6, at::kCPU, at::kFloat);
  save_decoder(saved, scratch.root());
  fs::remove(scratch / "model.safetensors");
  const Stored stored(saved);
  stored.write(scratch / "a.safetensors", 0, 7);
  stored.write(scratch / "b.safetensors", 7);
  Json map;
  for (size_t i = 0; i < stored.names.size(); ++i) map[stored.names[i]] = i < 7 ? "a.safetensors" : "b.safetensors";
  write_file_atomic(scratch / "model.safetensors.index.json",
                    Json{{"metadata", {{"total_size", 1}}}, {"weight_map", map}}.dump());
  Decoder loaded = load_decoder(scratch.root(), at::kCPU, at::kFloat);
  expect_equal(saved, loaded);
  const Decoder narrow = load_decoder(scratch.root(), at::kCPU, at::kBFloat16);
  EXPECT_TRUE(at::equal(narrow.weights.layers[1].down, saved.weights.layers[1].down.to(at::kBFloat16)));
}

TEST(Weights, WrongTensorsAreErrors) {
  const Scratch scratch;
  Decoder decoder = random_decoder(tiny(), 7, at::kCPU, at::kFloat);
  save_decoder(decoder, scratch.root());
  const auto error_of = [&](const std::function<void(Stored&)>& bend) {
    Stored stored(decoder);
    bend(stored);
    stored.write(scratch / "model.safetensors");
    return load_error(scratch.root());
  };
  const std::string up = "model.layers.1.mlp.up_proj.weight";
  EXPECT_EQ(error_of([](Stored&) {}), "loaded");
  EXPECT_NE(error_of([&](Stored& s) {
              s.names[static_cast<size_t>(std::find(s.names.begin(), s.names.end(), up) - s.names.begin())] = "other";
            }).find(up + " is missing"),
            std::string::npos);
  EXPECT_NE(
      error_of([&](Stored& s) { s[up] = s[up].t().contiguous(); }).find("[16, 24], config.json asks for [24, 16]"),
      std::string::npos);
  EXPECT_NE(error_of([&](Stored& s) {
              s.add("model.layers.2.mlp.up_proj.weight", at::zeros({24, 16}));
            }).find("model.layers.2.mlp.up_proj.weight"),
            std::string::npos);
  EXPECT_NE(error_of([&](Stored& s) { s[up] = at::zeros({24, 16}, at::kLong); }).find("I64"), std::string::npos);
  for (const float bad : {std::nanf(""), std::numeric_limits<float>::infinity()}) {
    EXPECT_NE(error_of([&](Stored& s) { s[up][3][4] = bad; }).find(up + " holds NaN or infinite"), std::string::npos);
    EXPECT_NE(error_of([&](Stored& s) { s[up] = s[up].to(at::kBFloat16), s[up][3][4] = bad; }).find("NaN"),
              std::string::npos);
  }
  EXPECT_EQ(error_of([&](Stored& s) { s.add("model.layers.0.self_attn.rotary_emb.inv_freq", at::zeros({3})); }),
            "loaded");
}

// If a checkpoint ties lm_head to the embedding but stores a different lm_head.weight, some engines use this matrix and
// others the embedding. Loading must therefore fail.
TEST(Weights, ATiedHeadThatDiffersFromTheEmbeddingIsAnError) {
  const Scratch scratch;
  Decoder decoder = random_decoder(tiny(true), 7, at::kCPU, at::kFloat);
  save_decoder(decoder, scratch.root());
  const auto error_with = [&](const at::Tensor& head) {
    Stored stored(decoder);
    stored.add("lm_head.weight", head);
    stored.write(scratch / "model.safetensors");
    return load_error(scratch.root());
  };
  EXPECT_EQ(error_with(decoder.weights.embed), "loaded") << "a copy";
  at::Tensor other = decoder.weights.embed.clone();
  other[39][15] += 1;
  for (const at::Tensor& head : {other, decoder.weights.embed.to(at::kBFloat16)}) {
    const std::string error = error_with(head);
    EXPECT_NE(error.find("lm_head.weight differs from model.embed_tokens.weight"), std::string::npos) << error;
    EXPECT_NE(error.find("tie_word_embeddings"), std::string::npos) << error;
  }
  testing::expect_error(ErrorKind::kModel, {"lm_head.weight differs"},
                        [&] { load_head(scratch.root(), at::kCPU, at::kFloat); });
}

// transformers 5 joins all experts of a layer in two tensors, and on request writes checkpoints in this form.
TEST(Weights, ExpertsInJoinedTensors) {
  for (const std::string type : {"qwen3_moe", "mixtral"}) {
    const Scratch scratch;
    Json json = toy_config(type, 2);
    json["num_experts_per_tok"] = 2;
    if (type == "mixtral") {
      json["num_local_experts"] = 3;
    } else {
      json.update(Json{{"num_experts", 3}, {"moe_intermediate_size", 24}, {"norm_topk_prob", true}});
    }
    Decoder decoder = random_decoder(parse_decoder_config(json, "toy"), 3, at::kCPU, at::kFloat);
    save_decoder(decoder, scratch.root());
    Stored plain(decoder);
    const auto write_joined = [&](bool transposed) {
      Stored joined = plain;
      for (size_t i = joined.names.size(); i-- > 0;)
        if (joined.names[i].find("experts.") != std::string::npos ||
            joined.names[i].find("moe.gate") != std::string::npos)
          joined.names.erase(joined.names.begin() + static_cast<std::ptrdiff_t>(i)),
              joined.tensors.erase(joined.tensors.begin() + static_cast<std::ptrdiff_t>(i));
      for (size_t l = 0; l < 2; ++l) {
        const LayerWeights& w = decoder.weights.layers[l];
        std::vector<at::Tensor> gate_up, down;
        for (const ExpertWeights& e : w.experts) gate_up.push_back(at::cat({e.gate, e.up})), down.push_back(e.down);
        const std::string mlp = "model.layers." + std::to_string(l) + ".mlp.";
        const at::Tensor all = at::stack(gate_up);
        joined.add(mlp + "experts.gate_up_proj", transposed ? all.transpose(1, 2).contiguous() : all);
        joined.add(mlp + "experts.down_proj", at::stack(down));
        if (type == "mixtral") joined.add(mlp + "gate.weight", w.router);
      }
      joined.write(scratch / "model.safetensors");
    };
    write_joined(false);
    Decoder loaded = load_decoder(scratch.root(), at::kCPU, at::kFloat);
    expect_equal(decoder, loaded);
    const Decoder narrow = load_decoder(scratch.root(), at::kCPU, at::kBFloat16);
    EXPECT_TRUE(
        at::equal(narrow.weights.layers[1].experts[2].up, decoder.weights.layers[1].experts[2].up.to(at::kBFloat16)));
    EXPECT_NO_THROW(load_decoder(scratch.root(), at::kCPU, at::kChar));
    write_joined(true);
    EXPECT_NE(load_error(scratch.root()).find("gate_up_proj has shape"), std::string::npos)
        << load_error(scratch.root());
  }
}

TEST(Weights, ValuesThatDoNotFitFp16AreErrors) {
  const Scratch scratch;
  Decoder decoder = random_decoder(tiny(), 8, at::kCPU, at::kFloat);
  decoder.weights.norm[0] = 1e6f;
  save_decoder(decoder, scratch.root());
  EXPECT_NO_THROW(load_decoder(scratch.root(), at::kCPU, at::kBFloat16));
  EXPECT_THROW(load_decoder(scratch.root(), at::kCPU, at::kHalf), Error);
}

TEST(Weights, ExpertsThatTheFamilyHasNoNamesForAreAnError) {
  DecoderConfig config = tiny();
  config.num_experts = 2, config.experts_per_token = 1, config.expert_intermediate_size = 8;
  config.layers[0].experts = true;
  testing::expect_error(ErrorKind::kInternal, {"model.layers.0.", "experts", "'" + config.model_type + "'"},
                        [&] { random_decoder(config, 1, at::kCPU, at::kFloat); });
}

TEST(Weights, RandomIsNormalAndReproducible) {
  Decoder a = random_decoder(tiny(), 1, at::kCPU, at::kFloat), again = random_decoder(tiny(), 1, at::kCPU, at::kFloat);
  expect_equal(a, again);
  EXPECT_FALSE(at::equal(a.weights.embed, random_decoder(tiny(), 2, at::kCPU, at::kFloat).weights.embed));
  EXPECT_FALSE(at::equal(a.weights.layers[0].gate, a.weights.layers[0].up));
  DecoderConfig wide = tiny();
  wide.vocab_size = 4000;
  const at::Tensor x = random_decoder(wide, 1, at::kCPU, at::kFloat).weights.embed / 0.02;  // 64,000 draws
  EXPECT_NEAR(x.mean().item<double>(), 0, 0.02);
  EXPECT_NEAR(x.std().item<double>(), 1, 0.02);
  EXPECT_NEAR(x.pow(4).mean().item<double>(), 3, 0.15);
  EXPECT_TRUE(at::equal(a.weights.norm, at::ones({16})));
}

TEST(Device, Flags) {
  EXPECT_EQ(resolve_device("cpu"), at::Device(at::kCPU));
  for (const char* bad : {"gpu", "cuda:", "cuda:x", "cuda:1234", ""}) {
    try {
      resolve_device(bad);
      FAIL() << bad;
    } catch (const Error& e) {
      EXPECT_EQ(e.kind(), ErrorKind::kUsage) << bad;
    }
  }
  try {
    if (resolve_device("cuda").is_cuda()) GTEST_SKIP() << "this machine has a GPU";
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), ErrorKind::kDevice);
    EXPECT_NE(std::string(e.what()).find("--device cpu"), std::string::npos) << e.what();
  }
  EXPECT_EQ(resolve_device("auto"), at::Device(at::kCPU));
  EXPECT_THROW(resolve_dtype("fp64", tiny()), Error);
  EXPECT_EQ(resolve_dtype("fp16", tiny()), at::kHalf);
}

TEST(MemoryPlan, CountsAndRefuses) {
  const DecoderConfig c = tiny();
  MemoryPlan plan = plan_memory({c, at::kFloat, &c, at::kBFloat16, 3, 100, at::kCPU});
  EXPECT_EQ(plan.target_bytes, 4 * num_parameters(c));
  EXPECT_EQ(plan.draft_bytes, 2 * num_parameters(c));
  // The factors: sequences, tokens in whole blocks, (k, v) × layers × key heads × head size, bytes of target and draft.
  EXPECT_EQ(plan.cache_bytes(), 3 * 128 * (2 * 2 * 2 * 6) * (4 + 2));
  EXPECT_GT(plan.available_bytes, 1 << 20);
  EXPECT_NO_THROW(check_memory(plan));
  plan.available_bytes = plan.total() - 1;
  try {
    check_memory(plan);
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), ErrorKind::kDevice);
    EXPECT_NE(std::string(e.what()).find("target"), std::string::npos);
  }
}

TEST(MemoryPlan, OfARankCountsItsShare) {
  DecoderConfig c = tiny();
  c.num_heads = 4, c.num_kv_heads = 2, c.vocab_size = 65;
  MemoryRequest request{c, at::kFloat, nullptr, at::kFloat, 3, 100, at::kCPU};
  const MemoryPlan whole = plan_memory(request);
  request.ranks = 2;
  const MemoryPlan share = plan_memory(request);
  EXPECT_EQ(share.target_cache_bytes, whole.target_cache_bytes / 2);
  EXPECT_LT(share.target_bytes, whole.target_bytes * 0.6);
  EXPECT_NEAR(static_cast<double>(share.available_bytes), static_cast<double>(whole.available_bytes) / 2,
              0.2 * static_cast<double>(whole.available_bytes));
  int64_t both = 0;
  for (const int rank : {0, 1}) {
    DecoderWeights none;
    for (const Parameter& p : list_parameters(none, c)) {
      const Slice slice = slice_of(p.split, p.shape, c, rank, 2);
      both += p.split == Split::kNone ? 0 : slice.share.length * c10::multiply_integers(p.shape) / p.shape[slice.dim];
    }
  }
  int64_t once = 0;
  for (DecoderWeights none; const Parameter& p : list_parameters(none, c))
    once += p.split == Split::kNone ? 0 : c10::multiply_integers(p.shape);
  EXPECT_EQ(both, once) << "every row and column belongs to one rank";
}

TEST(MemoryPlan, LeavesPartOfAGpuToWhatNoPlanCounts) {
  constexpr int64_t kGiB = int64_t{1} << 30;
  EXPECT_EQ(plannable_bytes(20 * kGiB, 24 * kGiB), 19 * kGiB);
  EXPECT_EQ(plannable_bytes(140 * kGiB, 150 * kGiB), 137 * kGiB);
  EXPECT_EQ(plannable_bytes(kGiB / 2, 24 * kGiB), 0) << "others use it";
}

// The memory of an EAGLE-3 head differs from that of a decoder with the same layer: a head has `fc`, wider inputs, no
// embedding and few rows of lm_head.
TEST(MemoryPlan, CountsAHeadAsOne) {
  DecoderConfig target = tiny();
  target.num_layers = 8;
  target.layers.resize(8);
  EagleConfig head = eagle_config_for(target);
  head.draft_vocab_size = 5;
  const auto plan_of = [&] {
    const HeadMemory memory = head_memory(head);
    return plan_memory({target, at::kFloat, &head.layer, at::kBFloat16, 3, 100, at::kCPU, &memory});
  };
  const MemoryPlan plan = plan_of();
  EXPECT_EQ(plan.draft_bytes, 2 * num_parameters(head));
  EXPECT_NE(plan.draft_bytes, 2 * num_parameters(head.layer));
  const MemoryPlan decoder = plan_memory({target, at::kFloat, &head.layer, at::kBFloat16, 3, 100, at::kCPU});
  EXPECT_EQ(plan.draft_cache_bytes, decoder.draft_cache_bytes);
  EXPECT_EQ(plan.workspace_bytes - decoder.workspace_bytes, 3 * 512 * 3 * 16 * 2) << "the states that the head reads";
  head.target_hidden_size = 32;
  EXPECT_EQ(plan_of().draft_bytes, 2 * (num_parameters(head) + target.vocab_size * 16)) << "its embedding is its own";
}

// If memory is short, the caches shrink first. Next, the draft becomes int8, and the caches may use the memory that
// this saves. Last, the draft is left out.
TEST(MemoryPlan, GivesUpWhatItCan) {
  const DecoderConfig c = tiny();
  constexpr int64_t kSequences = 8, kTokens = 320;
  const auto fit = [&](int64_t available, bool narrow = true, int64_t caches = 0) {
    return fit_memory({c, at::kFloat, &c, at::kFloat, kSequences, kTokens, at::kCPU}, caches, narrow, available);
  };
  const MemoryPlan whole = plan_memory({c, at::kFloat, &c, at::kFloat, kSequences, kTokens, at::kCPU});
  const MemoryPlan int8 = plan_memory({c, at::kFloat, &c, at::kChar, kSequences, kTokens, at::kCPU});
  const MemoryPlan alone = plan_memory({c, at::kFloat, nullptr, at::kFloat, kSequences, kTokens, at::kCPU});
  const int64_t caches = whole.cache_bytes(), rest = whole.total() - caches,
                int8_rest = int8.total() - int8.cache_bytes(), alone_rest = alone.total() - alone.cache_bytes();
  ASSERT_LT(int8_rest, rest);

  EXPECT_EQ(fit(whole.total()).given_up, "");
  EXPECT_EQ(fit(whole.total()).plan.total(), whole.total());
  const FittedMemory cut = fit(whole.total() - 1);
  EXPECT_TRUE(cut.draft && cut.draft_dtype == at::kFloat);
  EXPECT_NE(cut.given_up.find("suspended"), std::string::npos) << cut.given_up;
  EXPECT_LE(cut.plan.total(), whole.total() - 1);
  EXPECT_GT(cut.plan.cache_bytes(), caches / 2);
  EXPECT_EQ(fit(rest + caches / 4).draft_dtype, at::kFloat) << "a quarter of the caches will do";
  const FittedMemory narrow = fit(rest + caches / 4 - 1);
  EXPECT_TRUE(narrow.draft && narrow.draft_dtype == at::kChar && narrow.plan.draft_weights == "int8");
  EXPECT_NE(narrow.given_up.find("int8"), std::string::npos) << narrow.given_up;
  EXPECT_FALSE(fit(rest + caches / 4 - 1, false).draft) << "--draft-dtype is what the user wants";
  const FittedMemory plain = fit(int8_rest + int8.cache_bytes() / 4 - 1);
  EXPECT_FALSE(plain.draft);
  EXPECT_EQ(plain.plan.draft_cache_bytes, 0);
  EXPECT_NE(plain.given_up.find("left out"), std::string::npos) << plain.given_up;
  const FittedMemory none = fit(alone_rest + alone.cache_bytes() / 4 - 1);
  EXPECT_EQ(none.plan.total(), whole.total()) << "what is refused is what was asked for";
  EXPECT_THROW(check_memory(none.plan), Error);

  EXPECT_EQ(fit(whole.total(), true, caches / 2).plan.cache_bytes(), caches / 2);
  EXPECT_NO_THROW(fit(whole.total(), true, caches / kSequences));
  EXPECT_THROW(fit(whole.total(), true, caches / kSequences - 1), Error) << "no answer of full length";
}

}  // namespace
}  // namespace specdec::model
