#include "distill/labels/label_files.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <thread>

#include "base/sha256.h"
#include "tests/base/scratch.h"

namespace specdec::distill {
namespace {

using namespace specdec::testing;

LabelIndex small_index(const std::string& kind = "top_k") {
  LabelIndex index;
  index.kind = kind;
  (kind == "top_k" ? index.top_k : index.hidden_size) = 2;
  index.vocab_size = 10;
  index.data_digest = std::string(64, 'd');
  index.tokenizer_digest = std::string(64, 'e');
  index.num_rows = 3;
  return index;
}
LabelUse small_use() { return {std::string(64, 'd'), std::string(64, 'e'), "", 1, "DATA", "TARGET"}; }

// Returns the labels of a row with one position: token `first` with probability p, token 7 with 0.1.
RowLabels one_position(int32_t first, float p) {
  RowLabels row;
  append_position({{7, std::log(0.1f)}, {first, std::log(p)}}, small_index(), "here", row);
  return row;
}

TEST(LabelFiles, KeepTheLikeliestTokensAndTheRest) {
  RowLabels row;
  append_position({{4, std::log(0.1f)}, {9, std::log(0.5f)}, {0, std::log(0.2f)}}, small_index(), "here", row);
  EXPECT_EQ(row.ids, (std::vector<int32_t>{9, 0}));
  EXPECT_NEAR(row.logprobs[1], std::log(0.2), 1e-6);
  EXPECT_NEAR(std::exp(row.rest[0]), 0.3, 1e-6) << "the third token belongs to the rest";
  append_position({{1, 0.0f}, {2, -9999.0f}}, small_index(), "here", row);
  EXPECT_EQ(row.rest[1], kLeastLogRest) << "nothing is left";
  EXPECT_EQ(row.positions, 2);
  const auto refused = [&](const std::vector<std::string>& parts, const std::vector<TokenLogprob>& tokens) {
    expect_error(ErrorKind::kData, parts, [&] { append_position(tokens, small_index(), "here", row); });
  };
  refused({"here", "found 1 tokens, expected at least 2"}, {{1, -1.0f}});
  refused({"token id 10 is outside"}, {{1, -1.0f}, {10, -1.0f}});
  refused({"token id -1 is outside"}, {{1, -1.0f}, {-1, -1.0f}});
  refused({"token id 1 is there twice"}, {{1, -1.0f}, {1, -2.0f}});
  refused({"expected numbers up to 0"}, {{1, 0.5f}, {2, -1.0f}});
  refused({"expected numbers up to 0"}, {{1, NAN}, {2, -1.0f}});
  refused({"add up to 1.2"}, {{1, std::log(0.6f)}, {2, std::log(0.6f)}});
}

TEST(LabelFiles, AreReadAsTheyWereWritten) {
  Scratch scratch;
  LabelWriter writer(scratch / "labels", small_index(), false);
  writer.add(one_position(3, 0.5f));
  writer.add({});
  writer.flush();  // a shard may have any number of rows
  RowLabels two = one_position(1, 0.25f);
  append_position({{2, -1.0f}, {5, -2.0f}}, small_index(), "here", two);
  writer.add(two);
  expect_error(ErrorKind::kInternal, {"more rows"}, [&] { writer.add({}); });
  writer.finish();
  const LabelReader reader(scratch / "labels", small_use());
  EXPECT_EQ(reader.index().shards.size(), 2u);
  EXPECT_EQ(reader.positions(0), 1);
  EXPECT_EQ(reader.positions(1), 0);
  EXPECT_EQ(reader.positions(2), 2);
  EXPECT_EQ(reader.read(2, 2).ids, two.ids);
  EXPECT_EQ(reader.read(2, 2).logprobs, two.logprobs);
  EXPECT_EQ(reader.read(2, 1).rest, std::vector<float>{two.rest[0]}) << "of a row that was cut";
  EXPECT_EQ(reader.read(0, 1).ids, (std::vector<int32_t>{3, 7}));
  EXPECT_EQ(to_json(label_index_from_json(to_json(reader.index()), "index")), to_json(reader.index()));
  for (const auto& entry : fs::directory_iterator(scratch / "labels"))
    EXPECT_NE(entry.path().extension(), ".partial") << entry.path();
}

TEST(LabelFiles, AnInterruptedWriterGoesOn) {
  Scratch scratch;
  const fs::path out = scratch / "labels";
  {
    LabelWriter writer(out, small_index(), false);
    writer.add(one_position(3, 0.5f));
    writer.flush();
    writer.add(one_position(4, 0.5f));  // lost, because it is not flushed
  }
  put(out / "labels-00001.safetensors", "half of a shard that index.json does not name");
  expect_error(ErrorKind::kData, {"has labels for 1 of 3 rows", "--resume"}, [&] { LabelReader(out, small_use()); });
  expect_error(ErrorKind::kUsage, {"has labels already", "--resume"}, [&] { LabelWriter(out, small_index(), false); });
  LabelIndex other = small_index();
  other.data_digest = std::string(64, 'f');
  other.model = "m";
  expect_error(ErrorKind::kUsage, {"these differ: data_digest, model"}, [&] { LabelWriter(out, other, true); });
  {
    LabelWriter writer(out, small_index(), true);
    EXPECT_EQ(writer.next_row(), 1);
    expect_error(ErrorKind::kNetwork, {"lock"}, [&] { LabelWriter(out, small_index(), true); });
    writer.add(one_position(4, 0.5f));
    writer.add(one_position(5, 0.5f));
    writer.finish();
  }
  const LabelReader reader(out, small_use());
  for (int32_t row = 0; row < 3; ++row) EXPECT_EQ(reader.read(row, 1).ids[0], 3 + row);
  put(scratch / "foreign/notes.txt", "mine");
  expect_error(ErrorKind::kUsage, {"foreign"}, [&] { LabelWriter(scratch / "foreign", small_index(), true); });
}

TEST(LabelFiles, EachShardAddsOneLineUntilAllAreThere) {
  Scratch scratch;
  const fs::path out = scratch / "labels";
  {
    LabelWriter writer(out, small_index(), false);
    const std::string begun = get(out / "index.json");
    for (int32_t row = 0; row < 2; ++row) writer.add(one_position(3 + row, 0.5f)), writer.flush();
    EXPECT_EQ(get(out / "index.json"), begun) << "it would be written again for each of a million shards";
    const std::string lines = get(out / "shards.jsonl");
    EXPECT_EQ(std::count(lines.begin(), lines.end(), '\n'), 2);
    EXPECT_FALSE(complete_labels(out));
  }
  put(out / "shards.jsonl", get(out / "shards.jsonl") + R"({"file":"labels-0000)");  // killed in the middle of a line
  {
    LabelWriter writer(out, small_index(), true);
    EXPECT_EQ(writer.next_row(), 2);
    writer.add(one_position(5, 0.5f));
    writer.flush();
    const std::string last = get(out / "shards.jsonl");
    writer.finish();
    EXPECT_FALSE(fs::exists(out / "shards.jsonl"));
    put(out / "shards.jsonl", last);  // as if finish() was killed before it removed the file
  }
  EXPECT_EQ(complete_labels(out)->shards.size(), 3u);
  const LabelReader reader(out, small_use());
  for (int32_t row = 0; row < 3; ++row) EXPECT_EQ(reader.read(row, 1).ids[0], 3 + row);
}

TEST(LabelFiles, OfTwoFirstRunsOneWrites) {
  Scratch scratch;
  for (int i = 0; i < 100; ++i) {
    const fs::path out = scratch / std::to_string(i);
    std::atomic<int> wrote = 0;
    std::atomic<bool> go = false;
    const auto first_run = [&] {
      while (!go) std::this_thread::yield();
      try {
        LabelWriter writer(out, small_index(), false);
        for (int32_t row = 0; row < 3; ++row) writer.add(one_position(3, 0.5f));
        writer.finish();
        ++wrote;
      } catch (const Error& e) {
        EXPECT_TRUE(e.kind() == ErrorKind::kNetwork || e.kind() == ErrorKind::kUsage) << e.what();
      }
    };
    std::vector<std::thread> runs;
    for (int t = 0; t < 4; ++t) runs.emplace_back(first_run);
    go = true;
    for (std::thread& run : runs) run.join();
    ASSERT_EQ(wrote, 1) << "a later one wrote over complete labels";
  }
}

TEST(LabelFiles, OfAnotherTargetOrOtherDataAreRefused) {
  Scratch scratch;
  const fs::path out = scratch / "labels";
  LabelIndex index = small_index();
  index.num_rows = 0;
  index.target = Fingerprint{};
  Fingerprint& f = *index.target;
  f.config = f.tokenizer = f.header = f.weights = std::string(64, 'a');
  f.id = sha256_hex(
      canonical_json({{"config", f.config}, {"header", f.header}, {"tokenizer", f.tokenizer}, {"weights", f.weights}}));
  LabelWriter(out, index, false).finish();
  LabelUse use = small_use();
  use.target_id = f.id;
  EXPECT_EQ(LabelReader(out, use).index().target->id, f.id);
  const auto refused = [&](ErrorKind kind, const std::vector<std::string>& parts, auto change) {
    LabelUse wrong = use;
    change(wrong);
    expect_error(kind, parts, [&] { LabelReader(out, wrong); });
  };
  refused(ErrorKind::kData, {"labels of another target", f.id.substr(0, 12), "TARGET", "run specdec data label again"},
          [](LabelUse& u) { u.target_id = std::string(64, 'b'); });
  refused(ErrorKind::kData, {"labels for other data", "DATA"},
          [](LabelUse& u) { u.data_digest = std::string(64, 'b'); });
  refused(ErrorKind::kData, {"another tokenizer"}, [](LabelUse& u) { u.tokenizer_digest = std::string(64, 'b'); });
  refused(ErrorKind::kUsage, {"temperature of 1", "--temperature is 0.7"}, [](LabelUse& u) { u.temperature = 0.7; });
}

TEST(LabelFiles, DamageAndHostileFilesAreRefused) {
  Scratch scratch;
  const fs::path out = scratch / "labels", shard = out / "labels-00000.safetensors";
  const auto write = [&](const std::string& kind) {
    fs::remove_all(out);
    LabelWriter writer(out, small_index(kind), false);
    for (int32_t i = 0; i < 3; ++i) {
      RowLabels row = one_position(i, 0.5f);
      row.hidden = {0x3f80, 0x4000};
      if (kind == "hidden")
        row.ids = {}, row.logprobs = {}, row.rest = {};
      else
        row.hidden = {};
      writer.add(row);
    }
    writer.finish();
  };
  const auto rewrite = [&](const std::vector<TensorToWrite>& tensors) {
    fs::remove(shard);
    write_safetensors(shard, tensors);
    Json index = Json::parse(get(out / "index.json"));
    index["shards"][0]["sha256"] = sha256_file(shard);
    put(out / "index.json", index.dump());
  };
  write("top_k");
  std::string bytes = get(shard);
  bytes.back() ^= 1;
  put(shard, bytes);
  expect_error(ErrorKind::kData, {"labels-00000.safetensors", "sha256 differs"},
               [&] { LabelReader(out, small_use()); });
  const std::vector<int64_t> start = {0, 1, 2, 3}, backward = {0, 2, 1, 3};
  std::vector<int32_t> ids = {1, 2, 3, 4, 5, 6};
  std::vector<float> logprobs(6, -1.0f), rest(3, -1.0f);
  const auto tensors = [&](const std::vector<int64_t>& starts) -> std::vector<TensorToWrite> {
    return {{"row_start", "I64", {4}, std::as_bytes(std::span(starts))},
            {"ids", "I32", {3, 2}, std::as_bytes(std::span(ids))},
            {"logprobs", "F32", {3, 2}, std::as_bytes(std::span(logprobs))},
            {"rest", "F32", {3}, std::as_bytes(std::span(rest))}};
  };
  rewrite(tensors(start));
  EXPECT_EQ(LabelReader(out, small_use()).read(1, 1).ids, (std::vector<int32_t>{3, 4}));
  rewrite(tensors(backward));
  expect_error(ErrorKind::kData, {"row_start"}, [&] { LabelReader(out, small_use()); });
  auto fewer = tensors(start);
  fewer.pop_back();
  rewrite(fewer);
  expect_error(ErrorKind::kData, {"tensor rest is missing"}, [&] { LabelReader(out, small_use()); });
  const auto refuses_row = [&](const std::string& part) {
    rewrite(tensors(start));
    const LabelReader reader(out, small_use());
    expect_error(ErrorKind::kData, {"labels-00000.safetensors", part}, [&] { reader.read(1, 1); });
    ids = {1, 2, 3, 4, 5, 6};
    logprobs.assign(6, -1.0f), rest.assign(3, -1.0f);
  };
  ids[2] = 10;
  refuses_row("token id 10 is outside");
  ids[3] = -1;
  refuses_row("token id -1 is outside");
  logprobs[2] = NAN;
  refuses_row("not a number");
  rest[1] = 1;
  refuses_row("above 0");
  write("hidden");
  EXPECT_EQ(LabelReader(out, small_use()).read(2, 1).hidden, (std::vector<uint16_t>{0x3f80, 0x4000}));
  const std::vector<uint16_t> infinite = {0, 0, 0x7f80, 0, 0, 0};
  rewrite({{"row_start", "I64", {4}, std::as_bytes(std::span(start))},
           {"hidden", "BF16", {3, 2}, std::as_bytes(std::span(infinite))}});
  const LabelReader reader(out, small_use());
  expect_error(ErrorKind::kData, {"not finite"}, [&] { reader.read(1, 1); });
}

TEST(LabelFiles, MalformedIndexesAreRefused) {
  LabelIndex index = small_index();
  index.shards = {{"labels-00000.safetensors", std::string(64, 'a'), 3, 3}};
  const Json sound = to_json(index);
  const auto bad_index = [&](const std::string& part, const std::function<void(Json&)>& change) {
    Json changed = sound;
    change(changed);
    expect_error(ErrorKind::kData, {"index", part}, [&] { label_index_from_json(changed, "index"); });
  };
  bad_index("kind", [](Json& i) { i["kind"] = "all"; });
  bad_index("top_k", [](Json& i) { i["top_k"] = 11; });
  bad_index("top_k", [](Json& i) { i["hidden_size"] = 3; });
  bad_index("file name", [](Json& i) { i["shards"][0]["file"] = "../x"; });
  bad_index("at most num_rows", [](Json& i) { i["num_rows"] = 2; });
  bad_index("specdec.labels", [](Json& i) { i["schema"] = "specdec.labels/2"; });
}

}  // namespace
}  // namespace specdec::distill
