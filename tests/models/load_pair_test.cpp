#include "deploy/models/load_pair.h"

#include <gtest/gtest.h>

#include "base/schema/package_manifest.h"
#include "base/sha256.h"
#include "tests/models/real_models.h"

namespace specdec::deploy {
namespace {

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

struct ModelArgument : RealModels {
  PairOptions pair() const {
    PairOptions o;
    o.target = target.string();
    o.draft = draft.string();
    o.device.device = "cpu";
    o.tokens_per_sequence = 64;
    return o;
  }
  fs::path repository() const { return root / "hf" / "hub" / "models--org--name"; }
  void fill_cache(const std::string& commit, const std::string& revision) {
    fs::create_directories(repository() / "snapshots");
    fs::create_directories((repository() / "refs" / revision).parent_path());
    fs::copy(target, repository() / "snapshots" / commit, fs::copy_options::recursive);
    write_file_atomic(repository() / "refs" / revision, commit + "\n");
  }
  // Makes a package of the pair as `specdec package` does. If `reference` (a name at a hub) is given, the package names
  // the target instead of containing it.
  std::string package(const std::string& reference = "") {
    const fs::path directory = root / "pack";
    fs::create_directories(directory);
    if (reference.empty()) fs::copy(target, directory / "target", fs::copy_options::recursive);
    fs::copy(draft, directory / "draft", fs::copy_options::recursive);
    PackageManifest m;
    m.target = fingerprint_model(target);
    m.draft = fingerprint_model(draft);
    m.tokenizer_digest = m.target.tokenizer;
    m.draft_kind = "model";
    m.target_reference = reference;
    ValidationReport report;
    report.verdict = Verdict::kInconclusive;
    m.allowed_failed = true;
    report.target = m.target;
    report.draft = m.draft;
    m.report = to_json(report);
    m.provenance = Json::object();
    for (const auto& entry : fs::recursive_directory_iterator(directory))
      if (entry.is_regular_file())
        m.files.push_back({entry.path().lexically_relative(directory).generic_string(), entry.file_size(),
                           sha256_file(entry.path())});
    std::sort(m.files.begin(), m.files.end(),
              [](const PackagedFile& a, const PackagedFile& b) { return a.path < b.path; });
    write_file_atomic(directory / "manifest.json", canonical_json(to_json(m)));
    return directory.string();
  }
};

TEST_F(ModelArgument, LocalDirectory) {
  EXPECT_EQ(resolve_model(target.string()).directory, fs::path(target));
  EXPECT_TRUE(resolve_model(target.string()).draft.empty());
  fs::create_directory(root / "empty");
  EXPECT_TRUE(
      contains(error_of(ErrorKind::kModel, [&] { resolve_model((root / "empty").string()); }), "no config.json"));
  EXPECT_TRUE(
      contains(error_of(ErrorKind::kModel, [&] { resolve_model((target / "config.json").string()); }), "found a file"));
  error_of(ErrorKind::kModel, [&] { resolve_model((root / "absent").string()); });
  error_of(ErrorKind::kUsage, [&] { resolve_model(""); });
}

TEST_F(ModelArgument, HubCacheWithoutNetwork) {
  EXPECT_TRUE(contains(error_of(ErrorKind::kModel, [&] { resolve_model("org/name"); }), "specdec fetch org/name"));
  fill_cache("0123abcd", "main");
  const fs::path snapshot = repository() / "snapshots" / "0123abcd";
  EXPECT_EQ(resolve_model("org/name").directory, snapshot);
  EXPECT_EQ(resolve_model("hf://org/name@main").directory, snapshot);
  EXPECT_EQ(resolve_model("org/name@0123abcd").directory, snapshot);
  EXPECT_TRUE(contains(error_of(ErrorKind::kModel, [&] { resolve_model("org/name@v2"); }), "v2"));
  fill_cache("4567", "refs/pr/1");
  EXPECT_EQ(resolve_model("org/name@refs/pr/1").directory, repository() / "snapshots" / "4567");
  setenv("HF_HUB_CACHE", (root / "elsewhere").c_str(), 1);
  error_of(ErrorKind::kModel, [&] { resolve_model("org/name"); });
  unsetenv("HF_HUB_CACHE");
  fs::remove(snapshot / "config.json");
  error_of(ErrorKind::kModel, [&] { resolve_model("org/name"); });
}

TEST_F(ModelArgument, NamesThatLeaveTheCacheAreNoNames) {
  fill_cache("0123abcd", "main");
  for (const char* bad :
       {"org/../name", "../org/name", "org/name@../../etc", "org/na me", "/org/name", "org/", "/name", "org/name@"})
    error_of(ErrorKind::kModel, [&] { resolve_model(bad); });
  write_file_atomic(repository() / "refs" / "main", "../../../target");
  error_of(ErrorKind::kModel, [&] { resolve_model("org/name"); });
}

TEST_F(ModelArgument, UnboundPairLoadsWithOneWarning) {
  bool planned = false;
  PairOptions o = pair();
  o.on_plan = [&](const model::MemoryPlan& plan) { planned = plan.total() > 0; };
  const LoadedPair loaded = load_pair(o);
  EXPECT_TRUE(planned);
  ASSERT_TRUE(loaded.target && loaded.draft && loaded.tokenizer);
  EXPECT_EQ(loaded.binding, BindingState::kUnbound);
  EXPECT_TRUE(contains(loaded.warning, "not bound"));
  EXPECT_TRUE(contains(loaded.warning, "specdec distill binds")) << loaded.warning;
  EXPECT_FALSE(contains(loaded.warning, "specdec validate")) << loaded.warning;
  EXPECT_FALSE(loaded.chat_template);
  EXPECT_EQ(loaded.dtype, at::kFloat);
  PairOptions alone = pair();
  alone.draft.clear();
  const LoadedPair plain = load_pair(alone);
  EXPECT_TRUE(plain.warning.empty());
  EXPECT_FALSE(plain.draft);
}

TEST_F(ModelArgument, StaleDraftIsNotLoaded) {
  bind(fingerprint_model(target));
  EXPECT_EQ(load_pair(pair()).binding, BindingState::kBound);
  EXPECT_EQ(load_pair(pair()).warning, "");
  bind(fingerprint_model(draft));  // now the draft says that it was made for another target
  const LoadedPair refused = load_pair(pair());
  EXPECT_EQ(refused.binding, BindingState::kStale);
  EXPECT_FALSE(refused.target || refused.draft);
  EXPECT_TRUE(contains(refused.warning, "weights")) << refused.warning;
  PairOptions o = pair();
  o.allow_stale = true;
  const LoadedPair allowed = load_pair(o);
  EXPECT_TRUE(allowed.target && allowed.draft);
  EXPECT_EQ(allowed.binding, BindingState::kStale);
  EXPECT_FALSE(allowed.warning.empty());
}

TEST_F(ModelArgument, DraftOfAnotherVocabularyIsRefused) {
  Json config = read_json(draft / "config.json");
  config["vocab_size"] = 500;
  write_file_atomic(draft / "config.json", config.dump());
  error_of(ErrorKind::kModel, [&] { load_pair(pair()); });
  bind(fingerprint_model(draft));
  PairOptions o = pair();
  o.allow_stale = true;
  EXPECT_TRUE(contains(error_of(ErrorKind::kModel, [&] { load_pair(o); }), "vocab_size"));
}

TEST_F(ModelArgument, PackageBringsItsDraftAndItsBinding) {
  const std::string directory = package();
  PairOptions o = pair();
  o.target = directory;
  o.draft.clear();
  LoadedPair loaded = load_pair(o);
  EXPECT_EQ(loaded.binding, BindingState::kBound);
  EXPECT_EQ(loaded.warning, "");
  EXPECT_TRUE(loaded.draft);
  EXPECT_EQ(loaded.draft_dir, fs::path(directory) / "draft");
  EXPECT_EQ(loaded.package_digest, package_digest(directory));
  o.speculate = false;
  EXPECT_FALSE(load_pair(o).draft);
  o.draft = draft.string();  // the packaged target with another draft
  EXPECT_EQ(load_pair(o).draft_dir, fs::path(draft));
  write_file_atomic(fs::path(directory) / "draft" / "generation_config.json", "{}");
  error_of(ErrorKind::kData, [&] { resolve_model(directory); });
}

TEST_F(ModelArgument, PackageThatNamesItsTarget) {
  fill_cache("0123abcd", "main");
  const std::string directory = package("org/name");
  PairOptions o = pair();
  o.target = directory;
  o.draft.clear();
  EXPECT_EQ(load_pair(o).binding, BindingState::kBound);
  // Replaces the cached model, so that the target's name at the hub refers to another model.
  const fs::path snapshot = repository() / "snapshots" / "0123abcd";
  fs::remove_all(snapshot);
  fs::copy(draft, snapshot, fs::copy_options::recursive);
  EXPECT_EQ(load_pair(o).binding, BindingState::kStale);
  fs::remove_all(repository());
  EXPECT_TRUE(contains(error_of(ErrorKind::kModel, [&] { load_pair(o); }), "the package names its target"));
}

}  // namespace
}  // namespace specdec::deploy
