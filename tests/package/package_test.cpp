#include "deploy/package/package.h"

#include "base/gguf/gguf_file.h"
#include "base/minisign.h"
#include "base/model_directory.h"
#include "base/sha256.h"
#include "deploy/package/store.h"
#include "tests/base/gguf/sample_checkpoint.h"
#include "tests/package/pair.h"
#include "tests/source_folder.h"

namespace specdec::deploy {
namespace {

using specdec::testing::contents;
using specdec::testing::expect_error;
using specdec::testing::get;
using specdec::testing::Pair;
using specdec::testing::put;

TEST(Package, HoldsBothModelsLaunchFilesAndManifest) {
  const Pair pair;
  put(pair.dir / "target/README.md", "read me");
  put(pair.dir / "target/LICENSE", "free");
  put(pair.dir / "target/pytorch_model.bin", "pickle");
  put(pair.dir / "target/modeling_x.py", "code");
  put(pair.dir / "target/sub/x.json", "{}");
  put(pair.dir / "target/.hidden.json", "{}");
  const PackageOutcome done = pair.create();
  ASSERT_EQ(done.exit_code, 0) << done.reason;
  EXPECT_TRUE(done.is_new);
  EXPECT_EQ(done.path, pair.dir / "store/packages" / ("sha256-" + done.digest));
  EXPECT_EQ(done.digest, sha256_hex(get(done.path / "manifest.json")));
  std::set<std::string> names;
  for (const auto& [name, bytes] : contents(done.path)) names.insert(name);
  EXPECT_EQ(names, (std::set<std::string>{"manifest.json",
                                          "target/config.json",
                                          "target/generation_config.json",
                                          "target/model.safetensors",
                                          "target/tokenizer.json",
                                          "target/tokenizer_config.json",
                                          "target/README.md",
                                          "target/LICENSE",
                                          "draft/config.json",
                                          "draft/generation_config.json",
                                          "draft/model.safetensors",
                                          "draft/tokenizer.json",
                                          "draft/tokenizer_config.json",
                                          "draft/specdec.json",
                                          "draft/README.md",
                                          "engines/specdec.toml",
                                          "engines/vllm.sh",
                                          "engines/sglang.sh",
                                          "engines/tensorrt-llm.yaml",
                                          "engines/tensorrt-llm-1.2.yaml",
                                          "engines/llama.cpp.sh",
                                          "engines/kserve.yaml",
                                          "engines/helm-values.yaml"}));
  for (const auto& file : {"config.json", "model.safetensors"})
    for (const std::string& model : {std::string("target/"), std::string("draft/")})
      EXPECT_EQ(get(done.path / (model + file)), get(pair.dir / (model + file)));
  const PackageManifest m = read_manifest(done.path);
  EXPECT_EQ(m.target, fingerprint_model(pair.dir / "target"));
  EXPECT_EQ(m.draft, fingerprint_model(pair.dir / "draft"));
  EXPECT_EQ(m.draft_kind, "prune:1");
  EXPECT_EQ(m.provenance["training"]["steps"], 5);
  EXPECT_EQ(m.report, Json::parse(get(pair.dir / "report.json")));
  EXPECT_EQ(m.created, "2026-11-21T12:00:00Z");
  EXPECT_FALSE(m.allowed_failed);
  EXPECT_EQ(check_binding(done.path / "target", done.path / "draft").state, BindingState::kBound);
  EXPECT_EQ(verify_package(done.path.string()).exit_code, 0);
  EXPECT_TRUE(contents(pair.dir / "store/tmp").empty());
  EXPECT_NE(fs::status(done.path / "engines/vllm.sh").permissions() & fs::perms::owner_exec, fs::perms::none);
}

TEST(Package, StoresGgufFilesOnlyIfAsked) {
  const testing::Scratch dir;
  for (const char* model : {"target", "draft"}) testing::write_checkpoint(dir / model);
  const Fingerprint target = fingerprint_model(dir / "target"), draft = fingerprint_model(dir / "draft");
  put(dir / "report.json", to_json(testing::sample_report(target, draft, Verdict::kPass)).dump());
  PackageOptions options;
  options.target = dir / "target", options.draft = dir / "draft", options.report = dir / "report.json";
  options.store = dir / "store";
  options.gguf = "q8_0";
  const PackageOutcome done = create_package(options, 1795262400, {});
  EXPECT_EQ(verify_package(done.path.string()).exit_code, 0);
  std::set<std::string> listed;
  for (const PackagedFile& file : read_manifest(done.path).files) listed.insert(file.path);
  for (const char* role : {"target", "draft"}) {
    EXPECT_TRUE(listed.contains("gguf/" + std::string(role) + ".gguf"));
    const gguf::GgufFile file(done.path / "gguf" / (std::string(role) + ".gguf"));
    EXPECT_STREQ(file.tensor("blk.0.attn_q.weight").type->name, "Q8_0");
  }
  EXPECT_NE(get(done.path / "engines/llama.cpp.sh").find("$package/gguf/draft.gguf"), std::string::npos);
  EXPECT_FALSE(create_package(options, 1795262500, {}).is_new) << "the same inputs give the same files";
  options.reference = "org/target";
  const PackageOutcome referred = create_package(options, 1795262400, {});
  EXPECT_TRUE(fs::exists(referred.path / "gguf/draft.gguf"));
  EXPECT_FALSE(fs::exists(referred.path / "gguf/target.gguf"));
  options.gguf.clear();
  EXPECT_FALSE(fs::exists(create_package(options, 1795262400, {}).path / "gguf"));
}

TEST(Package, IsPrivateUnlessMadePublic) {
  const Pair pair;
  const PackageOutcome closed = pair.create();
  PackageOptions options = pair.options();
  options.is_public = true;
  const PackageOutcome open = create_package(options, 1795262400, {});
  EXPECT_FALSE(read_manifest(closed.path).is_public);
  EXPECT_TRUE(read_manifest(open.path).is_public);
  EXPECT_NE(open.digest, closed.digest) << "what is said about it is part of what is signed";
}

TEST(Package, TheDraftGetsTheTargetsTokenizer) {
  Pair pair;
  put(pair.dir / "draft/tokenizer_config.json", R"({"bos_token": "<x>"})");
  put(pair.dir / "draft/chat_template.jinja", "other");
  pair.write_report();
  const PackageOutcome done = pair.create();
  ASSERT_EQ(done.exit_code, 0) << done.reason;
  EXPECT_EQ(get(done.path / "draft/tokenizer_config.json"), get(pair.dir / "target/tokenizer_config.json"));
  EXPECT_FALSE(fs::exists(done.path / "draft/chat_template.jinja"));
  EXPECT_EQ(verify_package(done.path.string()).exit_code, 0);
}

// The speculators library nests the head's own config in another object. Such a head is packaged without a tokenizer.
TEST(Package, AHeadInTheSpeculatorsLayout) {
  Pair pair;
  const Json inner = Json::parse(get(pair.dir / "draft/config.json"));
  put(pair.dir / "draft/config.json", Json{{"architectures", {"Eagle3Speculator"}},
                                           {"speculators_model_type", "eagle3"},
                                           {"draft_vocab_size", 64},
                                           {"transformer_layer_config", inner}}
                                          .dump());
  pair.bind();
  pair.write_report();
  const PackageOutcome done = pair.create();
  ASSERT_EQ(done.exit_code, 0) << done.reason;
  EXPECT_NE(get(done.path / "engines/vllm.sh").find("eagle3"), std::string::npos);
  EXPECT_EQ(verify_package(done.path.string()).exit_code, 0);
}

TEST(Package, SameInputsGiveTheSamePackage) {
  const Pair pair;
  const PackageOutcome first = pair.create(), again = pair.create(1795262400 + 86400);
  EXPECT_TRUE(first.is_new);
  EXPECT_FALSE(again.is_new);
  EXPECT_EQ(first.digest, again.digest);
  EXPECT_EQ(std::distance(fs::directory_iterator(pair.dir / "store/packages"), fs::directory_iterator()), 1);
  EXPECT_TRUE(contents(pair.dir / "store/tmp").empty());
}

TEST(Package, ADamagedTwinIsNotReused) {
  const Pair pair;
  const PackageOutcome first = pair.create();
  put(first.path / "draft/config.json", "{}");
  const PackageOutcome again = pair.create(1795262400 + 5);
  EXPECT_TRUE(again.is_new);
  EXPECT_NE(first.digest, again.digest);
  EXPECT_EQ(verify_package(again.path.string()).exit_code, 0);
}

TEST(Package, ReportOfAnotherPairIsStale) {
  const auto refuse = [](const std::string& reason, const std::function<void(Pair&, PackageOptions&)>& change) {
    Pair pair;
    PackageOptions options = pair.options();
    change(pair, options);
    const PackageOutcome outcome = create_package(options, 0, {});
    EXPECT_EQ(outcome.exit_code, 5);
    EXPECT_NE(outcome.reason.find(reason), std::string::npos) << outcome.reason;
    EXPECT_FALSE(fs::exists(pair.dir / "store/packages")) << "nothing is written";
  };
  refuse("target (weights) differ", [](Pair& p, PackageOptions&) {
    testing::write_tiny_model(p.dir / "target", {.layers = 2, .bump = 1, .vocab = 64, .hidden = 8});
  });
  refuse("draft (weights) differ", [](Pair& p, PackageOptions&) {
    testing::write_tiny_model(p.dir / "draft", {.bump = 1, .vocab = 64, .hidden = 8});
  });
  refuse("roles swapped", [](Pair&, PackageOptions& o) { std::swap(o.target, o.draft); });
  refuse("was made for target", [](Pair& p, PackageOptions&) {
    testing::write_tiny_model(p.dir / "target", {.layers = 2, .bump = 1, .vocab = 64, .hidden = 8});
    p.write_report();  // validated with the new target, but the draft was distilled for the old target
  });
}

TEST(Package, ExchangedRolesAreExchangedBackByTheNextCommand) {
  const Pair pair;
  PackageOptions options = pair.options();
  std::swap(options.target, options.draft);
  const std::string target = (pair.dir / "target").string(), draft = (pair.dir / "draft").string();
  const PackageOutcome outcome = create_package(options, 0, {});
  EXPECT_EQ(outcome.exit_code, 5);
  EXPECT_TRUE(outcome.next.starts_with("specdec package --target " + target + " --draft " + draft + " --report "))
      << outcome.next;
}

TEST(Package, TheNextCommandMeasuresAsTheReportDidFromWhereverItIs) {
  const Pair pair;
  put(pair.dir / "traffic/index.json", "{}");
  ValidationReport report = testing::sample_report(fingerprint_model(pair.dir / "target"),
                                                   fingerprint_model(pair.dir / "draft"), Verdict::kInconclusive);
  report.alpha.n = 0;  // nothing was measured, so the next command is a validation
  report.data_path = "traffic";
  report.flags = {"--threads=2", "--floor=0.7"};
  put(pair.dir / "gate/report.json", to_json(report).dump());
  PackageOptions options = pair.options();
  options.report = pair.dir / "gate/report.json";
  const std::string next = create_package(options, 0, {}).next;
  EXPECT_NE(next.find("specdec validate --target "), std::string::npos) << next;
  EXPECT_NE(next.find(" --data " + (pair.dir / "traffic").string() + " "), std::string::npos) << next;
  EXPECT_NE(next.find(" --threads=2 --floor=0.7"), std::string::npos) << next;
}

TEST(Package, VerdictsThatAreNoPass) {
  const std::vector<std::pair<Verdict, int>> verdicts = {{Verdict::kFail, 3},
                                                         {Verdict::kNotLossless, 3},
                                                         {Verdict::kInconclusive, 4},
                                                         {Verdict::kStale, 5},
                                                         {Verdict::kNotWorthIt, 6}};
  for (const auto& [verdict, code] : verdicts) {
    Pair pair;
    pair.write_report(verdict);
    const PackageOutcome refused = pair.create();
    EXPECT_EQ(refused.exit_code, code);
    EXPECT_NE(refused.reason.find(to_string(verdict)), std::string::npos);
    EXPECT_NE(refused.reason.find("acceptance 0.70 above the floor"), std::string::npos)
        << "with the figure it was judged by";
    EXPECT_EQ(refused.gate["verdict"], verdict);
    EXPECT_EQ(refused.gate["judged_by"][0]["value"], 0.7);
    EXPECT_EQ(refused.next.rfind("specdec ", 0), 0u) << refused.next;
    EXPECT_FALSE(fs::exists(pair.dir / "store"));
    PackageOptions options = pair.options();
    options.allow_failed = true;
    const PackageOutcome allowed = create_package(options, 0, {});
    ASSERT_EQ(allowed.exit_code, 0) << allowed.reason;
    EXPECT_TRUE(read_manifest(allowed.path).allowed_failed);
    ASSERT_FALSE(allowed.warnings.empty());
    EXPECT_EQ(allowed.warnings[0].rfind("the gate did not pass: ", 0), 0u) << allowed.warnings[0];
    EXPECT_NE(get(allowed.path / "engines/specdec.toml").find("\nk = 0\n"), std::string::npos);
  }
}

// A long reason of the gate is stored in full in the package's manifest and outcome; warnings, launch files and the
// model card contain a short form.
TEST(Package, ALongReasonStandsInFullOnce) {
  Pair pair;
  ValidationReport report = testing::sample_report(fingerprint_model(pair.dir / "target"),
                                                   fingerprint_model(pair.dir / "draft"), Verdict::kInconclusive);
  report.reason =
      "acceptance 0.612 [0.550, 0.670] is not decided: its interval contains the floor 0.60; give more requests "
      "(--max-requests 0 takes all); speed-up at batch 1 1.043 [0.912, 1.180] decides nothing, because the machine was "
      "busy: other processes used 1.2 of 2 CPUs while it was timed; run it again on an idle machine";
  testing::put(pair.dir / "report.json", to_json(report).dump());
  PackageOptions options = pair.options();
  options.allow_failed = true;
  const PackageOutcome made = create_package(options, 0, {});
  ASSERT_EQ(made.exit_code, 0) << made.reason;
  EXPECT_EQ(made.gate_line, "inconclusive: " + report.reason);
  std::string rest;
  for (const std::string& warning : made.warnings) rest += warning + "\n";
  for (const auto& [file, text] : testing::contents(made.path))
    if (file.starts_with("engines/") || file == "draft/README.md") rest += text;
  EXPECT_NE(rest.find("the gate did not pass: inconclusive: acceptance 0.612"), std::string::npos);
  EXPECT_NE(rest.find("# Gate: inconclusive: acceptance 0.612"), std::string::npos);
  EXPECT_NE(rest.find("| verdict of the gate | inconclusive: acceptance 0.612"), std::string::npos);
  EXPECT_NE(rest.find("in full: manifest.json"), std::string::npos);
  EXPECT_EQ(rest.find("run it again on an idle machine"), std::string::npos) << rest;
}

// If the target's directory is called "target", its config may give a better name. Without such a name, model card and
// launch files describe the target by its fingerprint.
TEST(Package, ATargetIsCalledAsItsConfigSays) {
  Pair pair;
  EXPECT_EQ(pair.create().name, "target");
  const std::string card = get(pair.create().path / "draft/README.md");
  EXPECT_NE(card.find("# Draft model of the model with fingerprint `"), std::string::npos) << card;
  EXPECT_NE(card.find("| target | fingerprint `"), std::string::npos) << card;
  Json config = read_json(pair.dir / "target/config.json");
  config["_name_or_path"] = "org/Chat-7B";
  testing::put(pair.dir / "target/config.json", config.dump());
  pair.bind();
  pair.write_report();
  const PackageOutcome named = pair.create();
  ASSERT_EQ(named.exit_code, 0) << named.reason;
  EXPECT_EQ(named.name, "Chat-7B");
  EXPECT_NE(get(named.path / "draft/README.md").find("# Draft model of Chat-7B\n"), std::string::npos);
  EXPECT_NE(get(named.path / "engines/vllm.sh").find("--served-model-name 'Chat-7B'"), std::string::npos);
}

TEST(Package, BadInputs) {
  const auto refuse = [](ErrorKind kind, const std::string& reason,
                         const std::function<void(Pair&, PackageOptions&)>& change) {
    Pair pair;
    PackageOptions options = pair.options();
    change(pair, options);
    expect_error(kind, {reason}, [&] { create_package(options, 0, {}); });
    EXPECT_FALSE(fs::exists(pair.dir / "store/packages"));
  };
  refuse(ErrorKind::kData, "report.json", [](Pair& p, PackageOptions&) { put(p.dir / "report.json", "{"); });
  refuse(ErrorKind::kData, "none.json", [](Pair& p, PackageOptions& o) { o.report = p.dir / "none.json"; });
  refuse(ErrorKind::kModel, "model directory", [](Pair& p, PackageOptions& o) { o.draft = p.dir / "none"; });
  refuse(ErrorKind::kUsage, "--engines: 'triton'", [](Pair&, PackageOptions& o) { o.engines = {"triton"}; });
  refuse(ErrorKind::kUsage, "--name", [](Pair&, PackageOptions& o) { o.name = "a b"; });
  refuse(ErrorKind::kModel, "byte for byte", [](Pair& p, PackageOptions&) {
    put(p.dir / "draft/tokenizer.json", "{}");
    p.write_report();
  });
}

TEST(Package, TargetByReference) {
  Pair pair;
  PackageOptions options = pair.options();
  options.reference = fs::canonical(pair.dir / "target").string();
  const PackageOutcome done = create_package(options, 0, {});
  ASSERT_EQ(done.exit_code, 0) << done.reason;
  EXPECT_FALSE(fs::exists(done.path / "target"));
  EXPECT_EQ(resolve_package(done.path.string(), true)->target, fs::canonical(pair.dir / "target"));
  EXPECT_EQ(verify_package(done.path.string()).exit_code, 0);
  testing::write_tiny_model(pair.dir / "target", {.layers = 2, .bump = 1, .vocab = 64, .hidden = 8});
  EXPECT_EQ(verify_package(done.path.string()).exit_code, 5);
}

TEST(Package, VerifyTellsAnotherTargetFromDamage) {
  Pair pair;
  const PackageOutcome done = pair.create();
  const fs::path broken = pair.dir / "broken";
  const auto copy = [&] {
    remove_tree(broken);
    fs::copy(done.path, broken, fs::copy_options::recursive);
  };
  copy();
  EXPECT_EQ(verify_package(broken.string()).exit_code, 0) << "a renamed copy is as good";
  testing::write_tiny_model(broken / "target", {.layers = 2, .bump = 1, .vocab = 64, .hidden = 8});
  const PackageOutcome replaced = verify_package(broken.string());
  EXPECT_EQ(replaced.exit_code, 5);
  EXPECT_NE(replaced.reason.find("weights differ"), std::string::npos) << replaced.reason;
  const auto damaged = [&](const std::string& reason, const std::function<void()>& damage) {
    copy();
    damage();
    try {
      verify_package(broken.string());
      ADD_FAILURE() << "not noticed: " << reason;
    } catch (const Error& e) {
      EXPECT_EQ(exit_code(e.kind()), 7) << e.what();
      EXPECT_NE(std::string(e.what()).find(reason), std::string::npos) << e.what();
    }
  };
  damaged("draft/model.safetensors was changed", [&] {
    std::string bytes = get(broken / "draft/model.safetensors");
    bytes.back() ^= 1;
    put(broken / "draft/model.safetensors", bytes);
  });
  damaged("truncated", [&] { fs::resize_file(broken / "target/model.safetensors", 900); });
  damaged("engines/vllm.sh was changed", [&] {
    std::string bytes = get(broken / "engines/vllm.sh");
    bytes[30] ^= 1;
    put(broken / "engines/vllm.sh", bytes);
  });
  damaged("extra is not in the manifest", [&] { put(broken / "extra", ""); });
  damaged("is a link", [&] {
    fs::remove(broken / "draft/config.json");
    fs::create_symlink(done.path / "draft/config.json", broken / "draft/config.json");
  });
  damaged("manifest.json", [&] { put(broken / "manifest.json", "{}"); });
  damaged("not a package", [&] { remove_tree(broken); });
}

// The keys were made by minisign and are in tests/base/minisign.
TEST(Package, SignaturesAndStoresThatDemandThem) {
  const fs::path keys = fs::path(source_folder()) / "tests/base/minisign";
  Pair pair;
  const PackageOutcome made = pair.create();
  const fs::path store = pair.dir / "store", signature = made.path / kSignatureFile;
  expect_error(ErrorKind::kData, {"not signed"}, [&] { verify_package(made.path.string(), keys / "plain.pub"); });
  put(store / "trusted.pub", get(keys / "plain.pub"));
  expect_error(ErrorKind::kData, {"not signed", "trusted.pub demands it"},
               [&] { promote(store, made.digest, "prod", {"", 0}); });
  expect_error(ErrorKind::kData, {"not signed"}, [&] { resolve_package(made.path.string(), false); });
  EXPECT_EQ(sign_package(made.path.string(), keys / "cheap.key", "correct horse", 1795262400).digest, made.digest);
  EXPECT_EQ(verify_package(made.path.string()).exit_code, 0) << "its signature is no file too many";
  EXPECT_EQ(verify_package(made.path.string(), keys / "plain.pub").signer,
            read_minisign_keys(keys / "plain.pub")[0].name());
  EXPECT_NE(get(signature).find("\tpackage:sha256-" + made.digest), std::string::npos);
  ::setenv("XDG_STATE_HOME", (pair.dir / "state").c_str(), 1);
  const ChannelSigner signer{keys / "plain.key", ""};
  EXPECT_TRUE(promote(store, made.digest, "prod", {"", 0}, signer).changed);
  expect_error(ErrorKind::kData, {"not among the trusted ones"},
               [&] { verify_package(made.path.string(), keys / "locked.pub"); });
  put(store / "trusted.pub", get(keys / "locked.pub"));
  expect_error(ErrorKind::kData, {"not among the trusted ones"},
               [&] { promote(store, made.digest, "canary", {"", 0}, signer); });
  expect_error(ErrorKind::kData, {"not among the trusted ones"}, [&] { resolve_model(store.string() + ":prod"); });
  put(store / "trusted.pub", get(keys / "plain.pub"));
  std::string text = get(signature);
  text[text.find("timestamp:") + 12] ^= 1;
  put(signature, text);
  expect_error(ErrorKind::kData, {"trusted comment was changed"},
               [&] { resolve_package(store.string() + ":prod", false); });
  put(store / "trusted.pub", "");
  expect_error(ErrorKind::kData, {"no public key"}, [&] { resolve_package(store.string() + ":prod", false); });
  ::unsetenv("XDG_STATE_HOME");
}

// The process is killed (SIGKILL) at every write, fsync, rename, mkdir and unlink of packaging and promoting. The store
// must then hold only whole packages and a channel that points to one of them, and a second run must succeed.
TEST(Package, TheStoreIsValidAtEveryKillPoint) {
  Pair pair(/*in_memory=*/true);
  const fs::path store = pair.dir / "store";
  const PackageOutcome old = pair.create();
  promote(store, old.digest, "prod", {"first", 0});
  testing::write_tiny_model(pair.dir / "draft", {.bump = 3, .vocab = 64, .hidden = 8});
  pair.bind();
  pair.write_report();
  const fs::path clean = pair.dir / "clean";
  fs::copy(store, clean, fs::copy_options::recursive);
  int olds = 0, news = 0;
  const auto restore = [&] {
    remove_tree(store);
    fs::copy(clean, store, fs::copy_options::recursive);
  };
  const auto run = [&] { promote(store, pair.create(1795262500).digest, "prod", {"second", 1795262500}); };
  const auto check = [&](int n) {
    for (const auto& entry : fs::directory_iterator(store / "packages"))
      EXPECT_NO_THROW(resolve_package(entry.path().string(), true)) << n;
    const std::string current = read_channel(store, "prod");
    EXPECT_NO_THROW(resolve_package(store.string() + ":prod", true)) << n;
    (current == old.digest ? olds : news)++;
    EXPECT_NO_THROW(list_packages(store)) << n;
    if (n % 8 != 0) return;
    EXPECT_NO_THROW(run()) << "running it again after kill point " << n;
    EXPECT_NE(read_channel(store, "prod"), old.digest);
    EXPECT_EQ(rollback(store, "prod", {"", 0}).to, old.digest) << n;
  };
  const int points = testing::for_each_kill_point(restore, run, check);
  EXPECT_GE(points, 50);
  EXPECT_GT(olds, 45);
  EXPECT_GE(news, 1);
}

// Creates the package on a disk that is full at the first write, then at the second, and so on until it succeeds. Calls
// `look` after each failure.
void on_full_disks(const Pair& pair, const std::function<void(int)>& look) {
  for (int n = 1; n < 200; ++n) {
    const int code = testing::in_child("SPECDEC_ENOSPC_AT", std::to_string(n), [&] { pair.create(5); });
    if (code == 0) {
      EXPECT_GT(n, 15);
      return;
    }
    EXPECT_EQ(code, 74) << n;
    look(n);
  }
  ADD_FAILURE() << "never finished";
}

TEST(Package, FullDiskLeavesNoNewStore) {
  const Pair pair(/*in_memory=*/true);
  on_full_disks(pair, [&](int n) { EXPECT_FALSE(fs::exists(pair.dir / "store")) << n; });
}

TEST(Package, FullDiskLeavesTheStoreAsItWas) {
  Pair pair(/*in_memory=*/true);
  const PackageOutcome old = pair.create();
  testing::write_tiny_model(pair.dir / "draft", {.bump = 3, .vocab = 64, .hidden = 8});
  pair.bind();
  pair.write_report();
  const auto before = contents(pair.dir / "store");
  on_full_disks(pair, [&](int n) { EXPECT_EQ(contents(pair.dir / "store"), before) << n; });
}

}  // namespace
}  // namespace specdec::deploy
