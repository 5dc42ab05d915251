#include "data/redact/id_key.h"

#include <sys/stat.h>

#include <optional>
#include <thread>

#include "base/sha256.h"
#include "data/ingest.h"
#include "tests/data/toy.h"

namespace specdec::data {
namespace {

mode_t mode_of(const fs::path& file) {
  struct stat info{};
  EXPECT_EQ(::stat(file.c_str(), &info), 0) << file;
  return info.st_mode & 07777;
}

std::string problem(const fs::path& file) {
  try {
    HeldSalt{file};
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), ErrorKind::kConfig);
    return e.what();
  }
  return "";
}

TEST(IdKey, IsMadeOnceAndPrivate) {
  const Scratch s;
  const fs::path file = s / "data.salt";
  const IdKey made = HeldSalt(file).key();
  EXPECT_EQ(mode_of(file), 0600u);
  const std::string text = slurp(file);
  EXPECT_EQ(text.size(), 65u);
  EXPECT_EQ(HeldSalt(file).key().tenant("acme"), made.tenant("acme"));
  EXPECT_EQ(slurp(file), text);
  EXPECT_EQ(made.tenant("acme"),
            "tenant-" + to_hex(hmac_sha256(text.substr(0, 64), std::string("tenant\0acme", 11))).substr(0, 12));
  EXPECT_NE(made.digest("name", "acme"), made.digest("content", "acme"));
  EXPECT_EQ(made.tenant(""), "");
  EXPECT_NE(HeldSalt(s / "other.salt").key().tenant("acme"), made.tenant("acme"));
}

TEST(IdKey, SeveralProcessesGetTheSameOne) {
  const Scratch s;
  std::vector<std::string> names(8);
  std::vector<std::thread> threads;
  for (std::string& name : names) threads.emplace_back([&] { name = HeldSalt(s / "x.salt").key().tenant("acme"); });
  for (std::thread& t : threads) t.join();
  EXPECT_EQ(std::set<std::string>(names.begin(), names.end()).size(), 1u);
  EXPECT_EQ(std::distance(fs::directory_iterator(s.path()), fs::directory_iterator()), 1);  // no temporary file is left
}

TEST(IdKey, RefusesWhatIsNoSaltOrNotPrivate) {
  const Scratch s;
  const fs::path other = s.write("short", "abc\n");
  fs::permissions(other, fs::perms::owner_read | fs::perms::owner_write);
  EXPECT_NE(problem(other).find("64 hexadecimal digits"), std::string::npos);
  const fs::path open = s.write("open", std::string(64, 'a') + "\n");
  fs::permissions(open, fs::perms::owner_read | fs::perms::owner_write | fs::perms::group_read);
  EXPECT_NE(problem(open).find("mode 0640"), std::string::npos);
  HeldSalt{s / "real.salt"};
  fs::create_symlink("real.salt", s / "link.salt");
  EXPECT_NE(problem(s / "link.salt").find("is a link"), std::string::npos);
  fs::create_directory(s / "folder");
  EXPECT_NE(problem(s / "folder"), "");
}

// With the same salt file (the secret for hashing names), a later ingest gives the rows the same pseudonyms. Without
// that file, the rows get other pseudonyms. Neither a plain hash of a name nor the salt itself occurs in the output.
TEST(IdKey, IngestKeepsItBesideTheOutput) {
  const Scratch s;
  IngestOptions o;
  o.sources = {
      s.write("log.jsonl",
              R"({"id":"a@b.de","conversation_id":"jane@example.com","user":"acme","messages":[{"role":"user",)"
              R"("content":"q"},{"role":"assistant","content":"a"}]})"
              "\n"
              R"({"text":"only text"})"
              "\n")
          .string()};
  o.out = (s / "out").string();
  o.records = true;
  ingest(o, {});
  const std::string first = slurp(s / "out" / "records.jsonl"), salt = slurp(s / "out.salt");
  EXPECT_EQ(mode_of(s / "out.salt"), 0600u);
  for (const auto& entry : fs::recursive_directory_iterator(s / "out")) {
    const std::string bytes = entry.is_regular_file() ? slurp(entry.path()) : "";
    EXPECT_EQ(bytes.find(salt.substr(0, 64)), std::string::npos) << entry.path();
    for (const char* name : {"acme", "jane@example.com", "a@b.de"})
      EXPECT_EQ(bytes.find(sha256_hex(name).substr(0, 12)), std::string::npos) << entry.path() << ' ' << name;
    EXPECT_EQ(entry.path().filename().string().find("salt"), std::string::npos);
  }
  ingest(o, {});
  EXPECT_EQ(slurp(s / "out" / "records.jsonl"), first);
  o.out = (s / "second").string();
  o.salt = (s / "out.salt").string();
  ingest(o, {});
  EXPECT_EQ(slurp(s / "second" / "records.jsonl"), first);
  EXPECT_FALSE(fs::exists(s / "second.salt"));
  o.salt.clear();
  ingest(o, {});
  EXPECT_NE(slurp(s / "second" / "records.jsonl"), first);
}

// A run that fails removes the salt file that it made, unless another run for the same output directory uses the file.
TEST(IdKey, AFailingIngestRemovesOnlyASaltThatNobodyUses) {
  const Scratch s;
  IngestOptions o;
  o.sources = {s.write("log.jsonl", R"({"messages":[{"role":"user","content":"q"},{"role":"assistant","content":"a"}]})"
                                    "\n")};
  o.out = (s / "out").string();
  o.records = true;
  std::optional<HeldSalt> other;
  const auto fails = [&](bool another_run) {
    const auto fail = [&](const Progress&) {
      EXPECT_TRUE(fs::exists(s / "out.salt"));
      if (another_run) other.emplace(s / "out.salt");
      throw Error(ErrorKind::kIo, "stopped here");
    };
    EXPECT_THROW(ingest(o, fail), Error);
  };
  fails(false);
  EXPECT_FALSE(fs::exists(s / "out.salt"));
  fails(true);
  ASSERT_TRUE(fs::exists(s / "out.salt")) << "the other run's pseudonyms could not be made again";
  EXPECT_EQ(HeldSalt(s / "out.salt").key().tenant("acme"), other->key().tenant("acme"));
  other->give_up();
  EXPECT_FALSE(fs::exists(s / "out.salt")) << "the last run that fails removes it";
  other.reset();
  fails(true);
  other.reset();
  ingest(o, {});
  EXPECT_EQ(mode_of(s / "out.salt"), 0600u) << "a run that used it keeps it";
  fs::remove_all(s / "out");
  fails(true);
  other->give_up();
  EXPECT_TRUE(fs::exists(s / "out.salt")) << "neither of these runs made it";
}

}  // namespace
}  // namespace specdec::data
