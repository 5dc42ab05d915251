#include <sys/wait.h>
#include <unistd.h>

#include "base/safetensors.h"
#include "base/sha256.h"
#include "data/shards/shard_writer.h"
#include "data/stats.h"
#include "tests/base/scratch.h"
#include "tests/data/toy.h"

namespace specdec::data {
namespace {

TokenRow make_row(int i) {
  TokenRow row;
  row.id = "r" + std::to_string(i);
  row.conversation = "c" + std::to_string(i / 2);
  row.domain = i % 3 ? "code" : "";
  for (int t = 0; t < 3 + i % 5; ++t) {
    row.tokens.push_back((i * 7 + t) % 50);
    row.loss_mask.push_back(t > 1);
  }
  row.prompt_tokens = 2;
  row.has_sampling = i % 2;
  if (row.has_sampling) row.sampling = {0.25, 7, 0.5, 0.125};
  return row;
}

ShardIndex make_index(std::vector<ShardFile> shards) {
  ShardIndex index;
  index.tokenizer_digest = std::string(64, 'a');
  index.target_id = std::string(64, 'b');
  index.vocab_size = 50;
  index.shards = std::move(shards);
  return index;
}

void publish(const fs::path& out, int rows, int64_t max_shard_tokens = kMaxShardTokens) {
  publish_shards(out, [&](const fs::path& directory) {
    ShardWriter writer(directory, max_shard_tokens);
    for (int i = 0; i < rows; ++i) writer.add(i % 4 == 0 ? "holdout" : "train", make_row(i));
    return make_index(writer.finish());
  });
}

void expect_same(const TokenRow& a, const TokenRow& b) {
  EXPECT_EQ(a.id, b.id);
  EXPECT_EQ(a.conversation, b.conversation);
  EXPECT_EQ(a.domain, b.domain);
  EXPECT_EQ(a.tokens, b.tokens);
  EXPECT_EQ(a.loss_mask, b.loss_mask);
  EXPECT_EQ(a.prompt_tokens, b.prompt_tokens);
  EXPECT_EQ(a.has_sampling, b.has_sampling);
  EXPECT_EQ(a.sampling.temperature, b.sampling.temperature);
  EXPECT_EQ(a.sampling.top_k, b.sampling.top_k);
  EXPECT_EQ(a.sampling.top_p, b.sampling.top_p);
  EXPECT_EQ(a.sampling.min_p, b.sampling.min_p);
}

TEST(Shards, ReaderGivesBackWhatTheWriterGotAcrossSeveralShards) {
  const Scratch s;
  publish(s / "out", 40, 32);
  const ShardReader reader(s / "out");
  EXPECT_GT(reader.index().shards.size(), 4u);
  EXPECT_EQ(reader.digest(), sha256_file(s / "out" / "index.json"));
  const auto train = reader.rows("train"), holdout = reader.rows("holdout");
  EXPECT_EQ(reader.rows("all").size(), 40u);
  ASSERT_EQ(holdout.size(), 10u);
  for (size_t i = 0, t = 0; i < 40; ++i)
    expect_same(i % 4 == 0 ? holdout[i / 4] : train[t++], make_row(static_cast<int>(i)));
  EXPECT_THROW(reader.rows("test"), Error);
  // Any reader of safetensors can read the files.
  const SafetensorsFile file(s / "out" / reader.index().shards[0].tokens);
  EXPECT_EQ(file.tensors().at("tokens").dtype, "I32");
  EXPECT_EQ(file.tensors().at("loss_mask").dtype, "U8");
  EXPECT_EQ(file.tensors().at("row_start").dtype, "I64");
}

TEST(Shards, DataThatAReaderHoldsAreNotReplaced) {
  const Scratch s;
  publish(s / "out", 8);
  std::optional<ShardReader> reader(s / "out");
  const std::string digest = reader->digest();
  bool filled = false;
  const auto replace = [&](const std::function<void()>& meanwhile) {
    publish_shards(s / "out", [&](const fs::path& directory) {
      filled = true;
      meanwhile();
      ShardWriter writer(directory);
      writer.add("train", make_row(1));
      return make_index(writer.finish());
    });
  };
  using testing::expect_error;
  expect_error(ErrorKind::kNetwork, {"out", "another process reads these data"}, [&] { replace([] {}); });
  EXPECT_FALSE(filled) << "refused after the work";
  EXPECT_EQ(reader->rows("all").size(), 8u);

  std::shared_ptr<const DirectoryLock> hold = reader->hold();
  reader.reset();
  expect_error(ErrorKind::kNetwork, {"another process reads these data"}, [&] { replace([] {}); });
  hold.reset();
  expect_error(ErrorKind::kNetwork, {"another process reads these data"},
               [&] { replace([&] { reader.emplace(s / "out"); }); });
  EXPECT_TRUE(filled);
  EXPECT_EQ(reader->digest(), digest);
  EXPECT_EQ(reader->rows("all").size(), 8u);
  EXPECT_EQ(std::distance(fs::directory_iterator(s / ""), {}), 1) << "what was written in vain stays";
  reader.reset();
  replace([] {});
  EXPECT_EQ(ShardReader(s / "out").rows("all").size(), 1u);
}

TEST(Shards, RowLongerThanAShardIsWrittenWhole) {
  const Scratch s;
  publish(s / "out", 1, 2);
  EXPECT_EQ(ShardReader(s / "out").rows("all")[0].tokens.size(), 3u);
}

TEST(Shards, WriterRefusesBrokenRows) {
  const Scratch s;
  ShardWriter writer(s.path());
  for (auto breakage : std::vector<void (*)(TokenRow&)>{
           [](TokenRow& r) { r.loss_mask.pop_back(); }, [](TokenRow& r) { r.tokens.clear(), r.loss_mask.clear(); },
           [](TokenRow& r) { r.prompt_tokens = 99; }, [](TokenRow& r) { r.prompt_tokens = -1; }}) {
    TokenRow row = make_row(1);
    breakage(row);
    EXPECT_THROW(writer.add("train", row), Error);
  }
  EXPECT_THROW(writer.add("validation", make_row(1)), Error);
}

TEST(Shards, EveryDamageIsFound) {
  const Scratch s;
  const fs::path out = s / "out";
  const auto expect_refused = [&](const std::string& what) {
    try {
      ShardReader(out).rows("all");
      ADD_FAILURE() << what << " was accepted";
    } catch (const Error& e) {
      EXPECT_EQ(e.kind(), ErrorKind::kData) << what << ": " << e.what();
    }
  };
  const auto restore = [&] {
    fs::remove_all(out);
    publish(out, 12);
  };
  restore();
  for (const auto& entry : fs::directory_iterator(out)) {
    const std::string bytes = slurp(entry.path()), name = entry.path().filename();
    fs::remove(entry.path());
    expect_refused(name + " missing");
    std::ofstream(entry.path()) << bytes.substr(0, bytes.size() / 2);
    expect_refused(name + " truncated");
    std::ofstream(entry.path()) << bytes;
    if (name == "index.json") continue;
    std::string flipped = bytes;
    flipped[bytes.size() - 3] ^= 1;
    std::ofstream(entry.path()) << flipped;
    expect_refused(name + " with one bit flipped");
    std::ofstream(entry.path()) << bytes;
  }
  // Edits the index and corrects its digests, so that only the content is wrong. Reading the edited directory must
  // fail.
  const auto forge = [&](const std::string& what, const std::function<void(Json&)>& edit) {
    restore();
    Json index = read_json(out / "index.json");
    edit(index);
    std::ofstream(out / "index.json") << index.dump();
    expect_refused(what);
  };
  forge("more rows than there are",
        [](Json& i) { i["shards"][0]["num_rows"] = i["shards"][0]["num_rows"].get<int64_t>() + 1; });
  forge("fewer tokens than there are",
        [](Json& i) { i["shards"][0]["num_tokens"] = i["shards"][0]["num_tokens"].get<int64_t>() - 1; });
  forge("a vocabulary that is too small", [](Json& i) { i["vocab_size"] = 3; });
  forge("a path outside", [](Json& i) { i["shards"][0]["tokens"] = "../x"; });
  forge("another schema", [](Json& i) { i["schema"] = "specdec.data/2"; });
  forge("rows of another shard", [](Json& i) {
    i["shards"][0]["rows"] = i["shards"][1]["rows"], i["shards"][0]["rows_sha256"] = i["shards"][1]["rows_sha256"];
  });
  forge("a shard twice", [](Json& i) { i["shards"].push_back(i["shards"][0]); });
  forge("the rows of a shard twice", [](Json& i) {
    i["shards"].push_back(i["shards"][0]);
    i["shards"].back()["tokens"] = "train-00009.safetensors";
  });
  restore();
  EXPECT_EQ(ShardReader(out).rows("all").size(), 12u);
}

TEST(Publish, ReplacesOnlyItsOwnOutput) {
  const Scratch s;
  publish(s / "out", 4);
  publish(s / "out", 8);
  EXPECT_EQ(ShardReader(s / "out").rows("all").size(), 8u);
  publish((s / "out").string() + "/", 4);  // a path with a trailing slash
  EXPECT_EQ(ShardReader(s / "out").rows("all").size(), 4u);
  fs::create_directory(s / "empty");
  publish(s / "empty", 4);
  EXPECT_EQ(ShardReader(s / "empty").rows("all").size(), 4u);
  fs::create_directory(s / "mine");
  s.write("mine/letter.txt", "dear");
  EXPECT_THROW(publish(s / "mine", 4), Error);
  EXPECT_EQ(slurp(s / "mine" / "letter.txt"), "dear");
  s.write("file", "x");
  EXPECT_THROW(publish(s / "file", 4), Error);
  publish(s / "a" / "b" / "c", 4);  // missing parent directories are created
  EXPECT_THROW(publish_shards(s / "out", [](const fs::path&) -> ShardIndex { throw Error(ErrorKind::kData, "no"); }),
               Error);
  EXPECT_EQ(ShardReader(s / "out").rows("all").size(), 4u);
  for (const auto& entry : fs::directory_iterator(s.path()))
    EXPECT_EQ(entry.path().string().find(".partial"), std::string::npos);
}

TEST(Publish, WhatOthersPutThereIsNotReplaced) {
  const Scratch s;
  publish(s / "out", 4);
  EXPECT_NO_THROW(require_replaceable(s / "out"));
  fs::create_directories(s / "out" / "packages");
  EXPECT_THROW(require_replaceable(s / "out"), Error);
  fs::remove_all(s / "out" / "packages");
  s.write("out/notes.txt", "mine");
  EXPECT_THROW(publish(s / "out", 8), Error);
  EXPECT_EQ(slurp(s / "out" / "notes.txt"), "mine");
  EXPECT_EQ(ShardReader(s / "out").rows("all").size(), 4u);
}

// Kills the process at every file operation of a publish. Afterwards the old or the new directory exists, never a
// partial one.
TEST(Publish, KilledAtAnyPointLeavesOldOrNew) {
  const Scratch s;
  const fs::path out = s / "out";
  publish(out, 4);
  int killed = 0, old_kept = 0, at = 1;
  for (;; ++at) {
    const pid_t child = fork();
    if (child == 0) {
      setenv("SPECDEC_KILL_AT", std::to_string(at).c_str(), 1);
      publish(out, 8);
      _exit(0);
    }
    int status = 0;
    waitpid(child, &status, 0);
    const size_t rows = ShardReader(out).rows("all").size();
    ASSERT_TRUE(rows == 4 || rows == 8) << rows;
    if (WIFEXITED(status)) break;
    ASSERT_EQ(WTERMSIG(status), SIGKILL);
    ++killed;
    old_kept += rows == 4;
    publish(out, 4);
    ASSERT_LT(at, 200);
  }
  EXPECT_GE(killed, 15);
  EXPECT_GT(old_kept, 8);
  EXPECT_LT(old_kept, killed);  // some kills were after the rename
  EXPECT_EQ(ShardReader(out).rows("all").size(), 8u);
}

TEST(Stats, CountsCoverageAndSharedConversations) {
  const Scratch s;
  publish_shards(s / "out", [](const fs::path& directory) {
    ShardWriter writer(directory);
    const auto add = [&](const char* split, const char* conversation, const char* domain, std::vector<int32_t> tokens) {
      TokenRow row;
      row.id = conversation, row.conversation = conversation, row.domain = domain;
      row.loss_mask.assign(tokens.size(), 1);
      row.loss_mask[0] = 0;
      row.tokens = std::move(tokens);
      writer.add(split, row);
    };
    add("train", "a", "code", {1, 2, 3, 4});
    add("train", "b", "", {1, 2});
    add("holdout", "c", "code", {9, 2, 3, 5});  // token pairs 9-2, 2-3, 3-5; only 2-3 occurs in train
    ShardIndex index = make_index(writer.finish());
    index.rejects = {{"too_long", 2}};
    return index;
  });
  const DataStats stats = data_stats(s / "out");
  EXPECT_EQ(stats.splits.at("train").rows, 2);
  EXPECT_EQ(stats.splits.at("train").tokens, 6);
  EXPECT_EQ(stats.splits.at("holdout").loss_tokens, 3);
  EXPECT_EQ(stats.domains.at("train").at("code").rows, 1);
  EXPECT_EQ(stats.predicted_tokens, 3 + 1 + 3);
  EXPECT_TRUE(stats.has_coverage);
  EXPECT_DOUBLE_EQ(stats.bigram_coverage, 1.0 / 3);
  EXPECT_EQ(stats.length_max, 4);
  EXPECT_EQ(stats.length_p50, 4);
  EXPECT_EQ(stats.shared_conversations, 0);
  EXPECT_EQ(json_of(stats)["rejects"]["too_long"], 2);
  EXPECT_NE(to_table(stats).find("33.3 %"), std::string::npos);
}

}  // namespace
}  // namespace specdec::data
