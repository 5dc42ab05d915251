#include "distill/rows/rejects.h"

#include <gtest/gtest.h>

#include "base/schema/reject_record.h"
#include "distill/gradient/gradient.h"
#include "distill/gradient/trained_draft.h"
#include "distill/teacher/teacher.h"
#include "tests/distill/toy.h"

namespace specdec::distill {
namespace {

using namespace specdec::testing;

RejectRecord record_of(const std::string& id, const std::vector<std::pair<int64_t, int32_t>>& places) {
  RejectRecord record;
  record.id = record.conversation = id;
  record.draft = record.target = "0123456789ab";
  for (const auto& [position, next] : places)
    record.rejects.push_back({position, next == 0 ? 1 : 0, next, -1.0, {{next, -0.5}}});
  return record;
}

// Returns two rows whose first two tokens are the prompt.
std::vector<TokenRow> two_rows() {
  std::vector<TokenRow> rows(2);
  rows[0].id = "a", rows[1].id = "b";
  rows[0].tokens = {1, 5, 7, 8, 9, 10, 11}, rows[1].tokens = {1, 6, 7, 7, 7};
  for (TokenRow& row : rows) {
    row.prompt_tokens = 2;
    row.loss_mask.assign(row.tokens.size(), 1);
    row.loss_mask[0] = row.loss_mask[1] = 0;
  }
  rows[0].loss_mask[5] = 0;
  return rows;
}

TEST(Rejects, BelongToTheRowOfTheirId) {
  const Scratch scratch(true);
  fs::create_directories(scratch / "record/rejects");
  put(scratch / "record/rejects/rejects-1.jsonl", to_line(record_of("a", {{0, 7}, {2, 9}, {3, 10}, {40, 3}})) + "\n" +
                                                      to_line(record_of("other", {{0, 7}})) + "\n");
  put(scratch / "record/rejects/rejects-2.jsonl",
      to_line(record_of("b", {{0, 7}, {1, 9}, {2, 7}})) + "\n" + to_line(record_of("a", {{2, 9}})) + "\n");
  put(scratch / "record/rejects/notes.jsonl", "nothing\n");
  for (const fs::path& directory : {scratch / "record", scratch / "record/rejects"}) {
    const Rejects r = read_rejects(directory, two_rows());
    EXPECT_EQ(r.tokens[0], (std::vector<int32_t>{2, 4})) << "token 5 is not learnt, and token 42 was cut off";
    EXPECT_EQ(r.tokens[1], (std::vector<int32_t>{2})) << "token 3 is another one, and what follows is elsewhere";
    EXPECT_EQ(to_json(r), (Json{{"records", 4}, {"absent", 1}, {"other_text", 1}, {"tokens", 3}}));
  }
}

TEST(Rejects, TheDigestIsThatOfTheRefusedTokens) {
  const Scratch scratch(true);
  const auto digest = [&](const std::string& name, const std::vector<RejectRecord>& records) {
    fs::create_directories(scratch / name);
    std::string lines;
    for (const RejectRecord& record : records) lines += to_line(record) + "\n";
    put(scratch / name / "rejects-1.jsonl", lines);
    return digest_of(read_rejects(scratch / name, two_rows()));
  };
  const RejectRecord a = record_of("a", {{0, 7}, {2, 9}}), b = record_of("b", {{0, 7}});
  const std::string first = digest("1", {a, b});
  EXPECT_EQ(digest("2", {b, record_of("other", {{0, 7}}), a, a}), first);
  EXPECT_NE(digest("3", {a}), first);
  EXPECT_NE(digest("4", {record_of("a", {{0, 7}}), b}), first);
  EXPECT_NE(digest("5", {record_of("a", {{0, 7}, {1, 8}}), b}), first);
}

TEST(Rejects, HostileFilesAreRefused) {
  const Scratch scratch(true);
  fs::create_directories(scratch / "r");
  expect_error(ErrorKind::kUsage, {"--rejects", "rejects-*.jsonl", "--record-rejects"},
               [&] { read_rejects(scratch / "r", two_rows()); });
  expect_error(ErrorKind::kUsage, {"--rejects"}, [&] { read_rejects(scratch / "none", two_rows()); });
  const std::string good = to_line(record_of("a", {{0, 7}})) + "\n";
  for (const std::string& bad : {std::string("{\"schema\":\"specdec.rejects/9\"}\n"), std::string("{\n"),
                                 std::string(3 << 20, 'x'), std::string("\0\0", 2)}) {
    put(scratch / "r/rejects-1.jsonl", good + bad);
    expect_error(ErrorKind::kData, {"rejects-1.jsonl:2"}, [&] { read_rejects(scratch / "r", two_rows()); });
  }
}

struct OneBatch {
  std::vector<TokenRow> rows = toy_rows(3, 4);
  std::shared_ptr<model::Decoder> target = std::make_shared<model::Decoder>(toy_decoder(3, 1));
  model::Decoder draft = model::random_decoder(toy_config(2), 6, at::kCPU, at::kFloat);
  std::vector<NamedTensor> parameters = TrainedDraft(draft).trainable();
  ModelTeacher teacher{target, rows, 0};

  GradientSource source(double temperature) {
    return {&draft, &teacher, {parse_loss("kl+0.5*tv"), 3.0, temperature, 0.4}, {}};
  }
  double loss(const GradientSource& source, const std::vector<Batch>& batches) {
    GradientSums sums(parameters);
    return compute_gradients(source, batches, sums).loss;
  }
  std::vector<at::Tensor> gradients() const {
    std::vector<at::Tensor> out;
    for (const NamedTensor& p : parameters) out.push_back(p.tensor.grad().clone());
    return out;
  }
};

// A batch may have rows that were served at different temperatures. Its loss and gradients equal those of computing
// each row alone, at its own temperature.
TEST(RowTerms, RowsAreLearntAtTheirTemperatures) {
  OneBatch c;
  c.rows[0].has_sampling = c.rows[1].has_sampling = true;
  c.rows[0].sampling.temperature = 0.7, c.rows[1].sampling.temperature = 0;
  double expected = 0, learnt = 0;
  std::vector<at::Tensor> sum;
  for (const auto& [row, temperature] : std::vector<std::pair<size_t, double>>{{0, 0.7}, {1, 0.3}, {2, 1.4}}) {
    const auto count = static_cast<double>(learnt_positions(c.rows[row]));
    expected += count * c.loss(c.source(temperature), {make_batch(c.rows, {row})});
    const auto own = c.gradients();
    for (size_t i = 0; i < own.size(); ++i) {
      if (i == sum.size()) sum.push_back(at::zeros_like(own[i]));
      sum[i] += count * own[i];
    }
    learnt += count;
  }
  GradientSource source = c.source(1.4);
  source.terms.served_temperatures = true;
  EXPECT_NEAR(c.loss(source, {make_batch(c.rows, {0, 1, 2})}), expected / learnt, 1e-6);
  const auto all = c.gradients();
  for (size_t i = 0; i < all.size(); ++i)
    EXPECT_LT((all[i] - sum[i] / learnt).abs().max().item<double>(), 1e-6) << c.parameters[i].name;
}

TEST(RowTerms, RefusedTokensWeighMore) {
  OneBatch c;
  Rejects rejects;
  rejects.tokens = {{3, 5}, {}, {2}};
  const Batch batch = make_batch(c.rows, {2, 0, 1});
  const double plain = c.loss(c.source(1), {batch});
  // `refused` is the loss of the rejected tokens alone: all other tokens get loss_mask 0.
  std::vector<TokenRow> alone = c.rows;
  for (size_t i = 0; i < alone.size(); ++i)
    for (size_t t = 1; t < alone[i].tokens.size(); ++t)
      alone[i].loss_mask[t] = std::count(rejects.tokens[i].begin(), rejects.tokens[i].end(), static_cast<int32_t>(t));
  const double refused = c.loss(c.source(1), {make_batch(alone, {2, 0})});
  GradientSource source = c.source(1);
  source.terms = {false, &rejects, 4};
  EXPECT_NEAR(c.loss(source, {batch}), plain + 3 * refused * 3 / static_cast<double>(batch.rows.numel()), 1e-6);
  source.terms.reject_weight = 1;
  EXPECT_EQ(c.loss(source, {batch}), plain);
}

}  // namespace
}  // namespace specdec::distill
