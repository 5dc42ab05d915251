#include "distill/teacher/hidden_teacher.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>

#include "distill/run/run.h"
#include "distill/train/evaluate.h"
#include "engine/forward/forward.h"
#include "tests/distill/toy.h"

namespace specdec::distill {
namespace {

using namespace specdec::testing;

// The content of a file that vLLM's connector writes for a request: the token ids, and the hidden states after the
// layers `aux`, [L, N, E].
struct Saved {
  std::vector<int64_t> ids;
  at::Tensor states;
};
Saved save_request(const model::Decoder& target, const std::vector<int32_t>& tokens, const std::vector<int64_t>& aux) {
  at::NoGradGuard guard;
  Saved out{{tokens.begin(), tokens.end()}, {}};
  std::vector<at::Tensor> states(aux.size());
  model::last_hidden(target, {.tokens = at::tensor(out.ids, at::kLong).unsqueeze(0)},
                     [&](int64_t layer, const at::Tensor& x) {
                       for (size_t i = 0; i < aux.size(); ++i)
                         if (aux[i] == layer) states[i] = x[0].clone();
                     });
  out.states = at::stack(states, 1);
  return out;
}

void write_states(const fs::path& path, const Saved& saved, const std::string& dtype = "F32") {
  const at::Tensor states = saved.states.to(dtype == "BF16"  ? at::kBFloat16
                                            : dtype == "F16" ? at::kHalf
                                                             : at::kFloat)
                                .contiguous();
  fs::create_directories(path.parent_path());
  fs::remove(path);
  write_safetensors(
      path, {{"token_ids", "I64", {static_cast<int64_t>(saved.ids.size())}, std::as_bytes(std::span(saved.ids))},
             {"hidden_states",
              dtype,
              states.sizes().vec(),
              {static_cast<const std::byte*>(states.const_data_ptr()), states.nbytes()}}});
}

HiddenSource open_source(const fs::path& directory, const model::Decoder& target, const std::vector<TokenRow>& rows) {
  std::vector<const TokenRow*> all;
  for (const TokenRow& row : rows) all.push_back(&row);
  return {std::make_shared<model::Decoder>(target), HiddenFiles({directory, 16, norm_factors(target), {}}, all)};
}

double worst_difference(const TeacherSource& source, const model::Decoder& target, const std::vector<TokenRow>& rows) {
  std::vector<size_t> index(rows.size());
  for (size_t i = 0; i < rows.size(); ++i) index[i] = i;
  const Batch batch = make_batch(rows, index);
  const int64_t count = batch.rows.numel();
  const at::Tensor found = source.teach(rows, 0)->rows(batch)(0, count, {}),
                   expected = row_logits(target, batch)(0, count);
  return (at::softmax(found, -1) - at::softmax(expected, -1)).abs().max().item<double>();
}

struct Target {
  Scratch scratch;
  model::Decoder decoder = toy_decoder(3, 1);
  std::vector<TokenRow> rows = toy_rows(6, 4);

  Target() {
    at::NoGradGuard guard;
    decoder.weights.norm.copy_(at::linspace(0.5, 2, 16));
  }
  void write(const std::function<void(size_t, Saved&)>& change = {}, const std::string& dtype = "F32") {
    for (size_t i = 0; i < rows.size(); ++i) {
      Saved saved = save_request(decoder, rows[i].tokens, {1, 2, 3});
      if (change) change(i, saved);
      write_states(scratch / ("hs/cmpl-" + std::to_string(i) + ".safetensors"), saved, dtype);
    }
  }
  double difference() { return worst_difference(open_source(scratch / "hs", decoder, rows), decoder, rows); }
};

TEST(HiddenTeacher, GivesTheTargetsDistributions) {
  Target t;
  t.write();
  EXPECT_LT(t.difference(), 1e-6);
  t.write({}, "BF16");
  EXPECT_LT(t.difference(), 0.1);
  EXPECT_GT(t.difference(), 1e-6);
  t.write({}, "F16");
  EXPECT_LT(t.difference(), 0.02);
  // Only the last of the N states of a token is used.
  t.write([](size_t, Saved& s) { s.states = s.states.slice(1, 2).clone(); });
  EXPECT_LT(t.difference(), 1e-6);
  t.write([](size_t, Saved& s) { s.states.slice(1, 0, 2).fill_(NAN); });
  EXPECT_LT(t.difference(), 1e-6);
}

TEST(HiddenTeacher, StatesAfterTheFinalNormAreRecognised) {
  Target t;
  t.write([&](size_t i, Saved& s) {
    if (i % 2 == 0) s.states = model::final_norm(t.decoder, s.states);
  });
  EXPECT_LT(t.difference(), 1e-5);
  const HiddenSource source = open_source(t.scratch / "hs", t.decoder, t.rows);
  std::vector<const TokenRow*> all;
  for (const TokenRow& row : t.rows) all.push_back(&row);
  const HiddenFiles files({t.scratch / "hs", 16, norm_factors(t.decoder), {}}, all);
  for (size_t i = 0; i < 6; ++i) EXPECT_EQ(files.find(t.rows[i])->normed, i % 2 == 0) << i;
}

TEST(HiddenTeacher, FilesBelongToTheRowsThatTheyBeginWith) {
  Target t;
  t.rows[1].tokens = t.rows[0].tokens;  // the same text twice
  t.rows[1].loss_mask = t.rows[0].loss_mask;
  t.rows[2].loss_mask.assign(t.rows[2].loss_mask.size(), 1);
  t.rows[2].loss_mask[3] = 0;
  // A file may lack the row's last token, whose hidden state predicts nothing (row 2), or be longer than the row (row
  // 3).
  for (size_t i = 0; i < 5; ++i) {
    std::vector<int32_t> tokens = t.rows[i].tokens;
    if (i == 2) tokens.pop_back();
    if (i == 3) tokens.insert(tokens.end(), {5, 6, 7});
    if (i != 1)
      write_states(t.scratch / ("hs/" + std::to_string(i) + ".safetensors"), save_request(t.decoder, tokens, {3}));
  }
  write_states(t.scratch / "hs/other.safetensors", save_request(t.decoder, {1, 2, 3}, {3}));
  std::vector<const TokenRow*> all;
  for (const TokenRow& row : t.rows) all.push_back(&row);
  const HiddenFiles files({t.scratch / "hs", 16, norm_factors(t.decoder), {}}, all);
  EXPECT_EQ(files.files().size(), 4u);
  EXPECT_EQ(files.unused(), std::vector<std::string>{"other.safetensors"});
  EXPECT_EQ(files.find(t.rows[0]), files.find(t.rows[1]));
  EXPECT_EQ(files.find(t.rows[5]), nullptr);
  // Copying programs write unfinished files under names that begin with a dot.
  put(t.scratch / "hs/.5.safetensors", "half of a file");
  EXPECT_EQ(HiddenFiles({t.scratch / "hs", 16, norm_factors(t.decoder), {}}, all).files().size(), 4u);
  t.rows.pop_back();
  EXPECT_LT(t.difference(), 1e-6);
}

TEST(HiddenTeacher, HostileFilesAreRefused) {
  Target t;
  const fs::path file = t.scratch / "hs/cmpl-2.safetensors";
  const auto refused = [&](const std::vector<std::string>& parts, const std::function<void()>& damage) {
    t.write();
    damage();
    expect_error(ErrorKind::kData, parts, [&] { open_source(t.scratch / "hs", t.decoder, t.rows); });
  };
  const auto change = [&](const std::function<void(Saved&)>& f) {
    Saved saved = save_request(t.decoder, t.rows[2].tokens, {1, 3});
    f(saved);
    write_states(file, saved);
  };
  const std::string name = "cmpl-2.safetensors";
  refused({name, "last state of token 1 is not finite"},
          [&] { change([](Saved& s) { s.states[1][1][5] = INFINITY; }); });
  refused({name, "hidden_states: expected", "[", ", 2, 15]"},
          [&] { change([](Saved& s) { s.states = s.states.slice(2, 1).clone(); }); });
  refused({name, "hidden_states: expected", "3, 2, 16]"},
          [&] { change([](Saved& s) { s.states = s.states.slice(0, 0, 3).clone(); }); });
  refused({name, "hidden_states: expected"}, [&] { change([](Saved& s) { s.states = s.states[0]; }); });
  refused({name, "hidden_states: expected"},
          [&] { change([](Saved& s) { s.states = s.states.slice(1, 0, 0).clone(); }); });
  refused({name, "truncated"}, [&] { fs::resize_file(file, fs::file_size(file) - 1); });
  refused({name, "truncated"}, [&] { put(file, ""); });
  refused({name, "pickle"}, [&] { put(file, "\x80\x04xxxxxxxxxxx"); });
  refused({name, "expected a regular file", "a directory"}, [&] {
    fs::remove(file);
    fs::create_directory(file);
  });
  fs::remove_all(file);
  const std::vector<int32_t> narrow(4, 1);
  refused({name, "token_ids: expected I64", "I32 [4]"}, [&] {
    fs::remove(file);
    write_safetensors(file, {{"token_ids", "I32", {4}, std::as_bytes(std::span(narrow))}});
  });
  refused({name, "token_ids is missing"}, [&] {
    fs::remove(file);
    write_safetensors(file, {{"ids", "I32", {4}, std::as_bytes(std::span(narrow))}});
  });
  const std::vector<int64_t> ids(t.rows[2].tokens.begin(), t.rows[2].tokens.end());
  refused({name, "hidden_states is missing"}, [&] {
    fs::remove(file);
    write_safetensors(file, {{"token_ids", "I64", {static_cast<int64_t>(ids.size())}, std::as_bytes(std::span(ids))}});
  });
  t.write();
  const auto others = toy_rows(3, 99);
  expect_error(ErrorKind::kData, {"none of the 6 files", "cmpl-0.safetensors"},
               [&] { open_source(t.scratch / "hs", t.decoder, others); });
  expect_error(ErrorKind::kData, {"hs-none", "expected a directory"},
               [&] { open_source(t.scratch / "hs-none", t.decoder, t.rows); });
}

TEST(HiddenTeacher, ADraftFromFilesEqualsTheOneDistilledInProcess) {
  Scratch scratch;
  SystemClock clock;
  const model::Decoder target = toy_decoder(3, 1);
  fs::create_directories(scratch / "target");
  model::save_decoder(target, scratch / "target");
  toy_tokenizer(scratch / "target");
  const auto train = toy_rows(60, 5), holdout = toy_rows(40, 6);
  write_data(scratch / "data", scratch / "target", train, holdout);
  DistillOptions o;
  o.target = (scratch / "target").string();
  o.data = (scratch / "data").string();
  o.draft = "prune:2";
  o.learning_rate = 5e-3;
  o.batch_tokens = 200;
  o.max_steps = 40;
  o.teacher_cache_mib = 0;  // a cache would round to fp16
  o.contexts = "data";      // measures on the answers in the data, which the files cover
  o.device.device = "cpu";
  o.device.threads = 1;
  o.out = (scratch / "here").string();
  const DistillResult here = distill::run(o, {}, clock);
  int64_t i = 0;
  for (const auto* rows : {&train, &holdout})
    for (const TokenRow& row : *rows)
      write_states(scratch / ("hs/hs_" + std::to_string(i++) + ".safetensors"),
                   save_request(target, row.tokens, {1, 2, 3}));
  o.teacher = "hidden:" + (scratch / "hs").string();
  o.out = (scratch / "files").string();
  const DistillResult files = distill::run(o, {}, clock);
  EXPECT_NEAR(files.json["acceptance"]["after"]["value"].get<double>(),
              here.json["acceptance"]["after"]["value"].get<double>(), 1e-5);
  EXPECT_GT(files.json["acceptance"]["difference"]["value"].get<double>(), 0.02);
  EXPECT_EQ(files.json["data"]["unanswered_rows"], Json({{"train", 0}, {"holdout", 0}}));
  EXPECT_EQ(files.json["inputs"]["teacher"]["files"], 100);
  model::Decoder a = model::load_decoder(scratch / "here/draft", at::kCPU, at::kFloat),
                 b = model::load_decoder(scratch / "files/draft", at::kCPU, at::kFloat);
  const auto weights = [](model::Decoder& d) {
    std::vector<at::Tensor> out;
    d.weights.visit(d.config, [&](const std::string&, at::Tensor& t) { out.push_back(t); });
    return out;
  };
  const auto x = weights(a), y = weights(b);
  for (size_t k = 0; k < x.size(); ++k) EXPECT_LT((x[k] - y[k]).abs().max().item<double>(), 1e-5);
  // If the files of some rows are missing, the run drops these rows and reports how many there are.
  for (const char* name : {"hs_3", "hs_4", "hs_70"}) fs::remove(scratch / "hs" / (std::string(name) + ".safetensors"));
  o.out = (scratch / "fewer").string();
  o.draft = "model:" + o.target;
  o.max_steps = 2;
  const DistillResult fewer = distill::run(o, {}, clock);
  EXPECT_EQ(fewer.json["data"]["unanswered_rows"], Json({{"train", 2}, {"holdout", 1}}));
  EXPECT_EQ(fewer.json["data"]["train_rows"], 58);
  // Resuming with other files is refused.
  fs::remove(scratch / "fewer/result.json");
  fs::remove(scratch / "hs/hs_5.safetensors");
  o.resume = true;
  expect_error(ErrorKind::kUsage, {"--teacher (digest"}, [&] { distill::run(o, {}, clock); });
}

}  // namespace
}  // namespace specdec::distill
