#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <functional>
#include <map>

#include "tests/architecture/rules.h"
#include "tests/source_folder.h"

namespace specdec::architecture {
namespace {

namespace fs = std::filesystem;

TEST(Architecture, TheTreeKeepsTheRules) {
  for (const Violation& v : check_tree(source_folder()))
    ADD_FAILURE() << v.file << (v.line ? ":" + std::to_string(v.line) : "") << ": " << v.text;
}

// A small tree that follows the rules; each test case breaks one rule.
class Rules : public ::testing::Test {
 protected:
  Rules() {
    std::string name = (fs::temp_directory_path() / "specdec-rules-XXXXXX").string();
    root_ = ::mkdtemp(name.data());
    put("base/a.h", "#pragma once\n");
    put("base/a.cpp", "#include \"base/a.h\"\n\n#include <string>\n");
    put("text/t.h", "#include \"base/a.h\"\n");
    put("net/n.h", "#include \"base/a.h\"\n");
    put("data/shards/shard_reader.h", "#include \"base/a.h\"\n");
    put("data/ingest.h", "#include \"text/t.h\"\n");
    put("engine/kernels/k.h", "#include <ATen/ATen.h>\n#include \"base/a.h\"\n");
    put("engine/kernels/cuda/k.cu", "#include <cuda_runtime.h>\n");
    put("engine/weights/m.h", "#include \"engine/kernels/k.h\"\n");
    put("engine/decode/d.h", "#include \"base/a.h\"\n");
    put("distill/run/x.cpp", "#include \"data/shards/shard_reader.h\"\n#include \"engine/weights/m.h\"\n");
    put("deploy/serve/s.h", "#include \"base/a.h\"\n");
    put("deploy/bench/b.cpp", "#include \"engine/decode/d.h\"\n#include \"data/shards/shard_reader.h\"\n");
    put("monitor/m.h", "#include \"base/a.h\"\n");
    put("cli/c.cpp", "#include \"monitor/m.h\"\nint main() { printf(\"x\"); exit(0); }\n");
    put("build-x/y.cpp", "#include \"../z.h\"\n");
  }
  ~Rules() override { fs::remove_all(root_); }

  void put(const std::string& file, const std::string& text) {
    fs::create_directories((root_ / file).parent_path());
    std::ofstream(root_ / file) << text;
  }
  // Writes `text` to `file` and expects exactly one violation, at line `line`, whose text contains `part`.
  void expect(const std::string& file, int line, const std::string& part, const std::string& text) {
    put(file, text);
    const auto found = check_tree(root_);
    ASSERT_EQ(found.size(), 1u) << file << "\n"
                                << text << (found.size() > 1 ? found[0].text + " / " + found[1].text : "");
    EXPECT_EQ(found[0].file, file);
    EXPECT_EQ(found[0].line, line);
    EXPECT_NE(found[0].text.find(part), std::string::npos) << found[0].text;
    fs::remove(root_ / file);
  }
  fs::path root_;
};

TEST_F(Rules, AGoodTreeHasNone) { EXPECT_TRUE(check_tree(root_).empty()); }

TEST_F(Rules, Arrows) {
  expect("base/b.cpp", 1, "must not include text/t.h", "#include \"text/t.h\"\n");
  expect("text/b.cpp", 2, "must not include data/shards/shard_reader.h", "\n#include \"data/shards/shard_reader.h\"\n");
  expect("engine/kernels/b.cpp", 1, "must not include engine/weights/m.h", "#include \"engine/weights/m.h\"\n");
  expect("engine/weights/b.cpp", 1, "must not include engine/decode/d.h", "#include \"engine/decode/d.h\"\n");
  expect("engine/decode/b.cpp", 1, "must not include text/t.h", "#include \"text/t.h\"\n");
  expect("distill/run/b.cpp", 1, "must not include deploy/serve/s.h", "#include \"deploy/serve/s.h\"\n");
  expect("distill/run/c.cpp", 1, "must not include data/ingest.h", "#include \"data/ingest.h\"\n");
  expect("deploy/bench/c.cpp", 1, "must not include data/ingest.h", "#include \"data/ingest.h\"\n");
  expect("monitor/b.cpp", 1, "must not include text/t.h", "#include \"text/t.h\"\n");
  expect("base/c.cpp", 1, "must not include net/n.h", "#include \"net/n.h\"\n");
  // The server must not contain code that downloads anything.
  expect("deploy/serve/c.cpp", 1, "must not include net/n.h", "#include \"net/n.h\"\n");
  expect("cli/engine/b.cpp", 1, "must not include engine/weights/m.h", "#include \"engine/weights/m.h\"\n");
}

// For each folder, examples of headers that its files must not include.
const std::map<std::string, std::vector<std::string>> kForbidden = {
    {"base", {"base/schema/s.h", "base/page/p.h"}},
    {"base/page", {"base/schema/s.h"}},
    {"engine/kernels/cpu", {"engine/kernels/k.h"}},
    {"engine/kernels", {"engine/kernels/cuda/c.h"}},
    {"engine/config", {"engine/kernels/k.h", "engine/weights/m.h"}},
    {"engine/weights", {"engine/cache/c.h", "engine/forward/f.h"}},
    {"engine/cache", {"engine/weights/m.h", "engine/forward/f.h"}},
    {"engine/forward", {"engine/decode/runners/r.h", "engine/parallel/p.h"}},
    {"engine/decode", {"engine/weights/m.h", "engine/forward/f.h"}},
    {"engine/decode/sampling", {"engine/decode/control/c.h", "engine/decode/step.h"}},
    {"engine/decode/control", {"engine/decode/sampling/s.h", "engine/decode/step.h"}},
    {"engine/decode/runners", {"engine/decode/round/r.h", "engine/decode/step.h", "engine/kernels/k.h"}},
    {"engine/decode/round", {"engine/weights/m.h", "engine/decode/step.h"}},
    {"engine/self_test", {"engine/decode/step.h", "engine/weights/m.h"}},
    {"data/formats", {"data/sources/s.h", "data/redact/r.h"}},
    {"data/redact", {"data/select/s.h", "data/ingest.h"}},
    {"data/select", {"data/formats/f.h", "data/shards/shard_reader.h"}},
    {"data/shards", {"data/select/s.h", "text/t.h"}},
    {"data/sources", {"data/redact/r.h", "net/n.h"}},
    {"data", {"data/regenerate/r.h", "net/n.h"}},
    {"distill/settings", {"distill/rows/r.h", "engine/config/c.h"}},
    {"distill/labels", {"distill/teacher/t.h", "net/n.h"}},
    {"distill/metrics", {"distill/train/t.h", "engine/config/c.h"}},
    {"distill/rows", {"distill/loss/l.h", "data/shards/shard_reader.h"}},
    {"distill/loss", {"distill/teacher/t.h", "engine/forward/f.h"}},
    {"distill/teacher", {"distill/gradient/g.h", "distill/metrics/m.h"}},
    {"distill/gradient", {"distill/train/t.h", "data/shards/shard_reader.h"}},
    {"distill/train", {"distill/run/r.h", "data/shards/shard_reader.h"}},
    {"distill/run", {"distill/study/s.h", "data/ingest.h"}},
    {"distill/study", {"distill/teacher/t.h", "engine/forward/f.h"}},
    {"deploy/report", {"deploy/validate/v.h"}},
    {"deploy/models", {"engine/decode/d.h"}},
    {"deploy/validate", {"deploy/package/p.h"}},
    {"deploy/package", {"deploy/report/r.h"}},
    {"deploy/serve", {"deploy/serve/engine/e.h", "deploy/serve/answer/a.h"}},
    {"deploy/serve/http", {"deploy/serve/queue/q.h", "text/t.h"}},
    {"deploy/serve/request", {"deploy/serve/http/h.h", "deploy/serve/s.h"}},
    {"deploy/serve/queue", {"deploy/serve/schedule/s.h", "deploy/serve/http/h.h"}},
    {"deploy/serve/answer", {"deploy/serve/schedule/s.h", "engine/decode/d.h"}},
    {"deploy/serve/schedule", {"deploy/serve/api/a.h", "deploy/serve/engine/e.h"}},
    {"deploy/serve/api", {"deploy/serve/engine/e.h", "engine/decode/d.h"}},
    {"deploy/serve/engine", {"deploy/serve/api/a.h", "text/t.h"}},
    {"monitor/read", {"monitor/statistics/s.h", "monitor/m.h"}},
    {"monitor/statistics", {"monitor/state/s.h", "net/n.h"}},
    {"monitor/state", {"monitor/facts/f.h", "net/n.h"}},
    {"monitor/facts", {"monitor/machine/m.h", "monitor/actions/a.h"}},
    {"monitor/machine", {"monitor/statistics/s.h", "net/n.h"}},
    {"monitor/actions", {"monitor/report/r.h", "monitor/m.h"}},
    {"monitor/report", {"monitor/actions/a.h", "net/n.h"}},
};

TEST_F(Rules, ArrowsInsideOfAFolder) {
  for (const char* file : {"base/schema/s.h",           "base/page/p.h",
                           "engine/kernels/cpu/c.h",    "engine/kernels/cuda/c.h",
                           "engine/config/c.h",         "engine/cache/c.h",
                           "engine/forward/f.h",        "engine/parallel/p.h",
                           "engine/decode/step.h",      "engine/decode/sampling/s.h",
                           "engine/decode/control/c.h", "engine/decode/runners/r.h",
                           "engine/decode/round/r.h",   "deploy/report/r.h",
                           "deploy/models/m.h",         "deploy/validate/v.h",
                           "deploy/package/p.h",        "deploy/serve/engine/e.h",
                           "deploy/serve/http/h.h",     "deploy/serve/request/r.h",
                           "deploy/serve/queue/q.h",    "deploy/serve/answer/a.h",
                           "deploy/serve/schedule/s.h", "deploy/serve/api/a.h",
                           "monitor/read/r.h",          "monitor/statistics/s.h",
                           "monitor/facts/f.h",         "monitor/state/s.h",
                           "monitor/machine/m.h",       "monitor/actions/a.h",
                           "monitor/report/r.h",        "data/sources/s.h",
                           "data/formats/f.h",          "data/redact/r.h",
                           "data/select/s.h",           "data/regenerate/r.h",
                           "distill/settings/s.h",      "distill/rows/r.h",
                           "distill/loss/l.h",          "distill/labels/l.h",
                           "distill/teacher/t.h",       "distill/gradient/g.h",
                           "distill/metrics/m.h",       "distill/train/t.h",
                           "distill/run/r.h",           "distill/study/s.h"})
    put(file, "#pragma once\n");
  put("base/page/good.cpp", "#include \"base/page/p.h\"\n#include \"base/a.h\"\n");
  put("monitor/good.cpp", "#include \"monitor/actions/a.h\"\n#include \"monitor/machine/m.h\"\n");
  put("engine/kernels/good.cpp", "#include \"engine/kernels/cpu/c.h\"\n");
  put("engine/decode/good.cpp", "#include \"engine/decode/round/r.h\"\n#include \"engine/decode/control/c.h\"\n");
  put("engine/decode/runners/good.cpp", "#include \"engine/weights/m.h\"\n#include \"engine/forward/f.h\"\n");
  put("deploy/validate/good.cpp", "#include \"deploy/models/m.h\"\n#include \"deploy/report/r.h\"\n");
  put("monitor/actions/good.cpp", "#include \"monitor/state/s.h\"\n");
  put("data/regenerate/good.cpp", "#include \"net/n.h\"\n");
  put("data/good.cpp", "#include \"data/sources/s.h\"\n#include \"data/shards/shard_reader.h\"\n");
  EXPECT_TRUE(check_tree(root_).empty());
  for (const auto& [folder, others] : kForbidden)
    for (const std::string& other : others)
      expect(folder + "/b.cpp", 1, "must not include " + other, "#include \"" + other + "\"\n");
}

// Folders of a stage must not include each other in a circle, even if the table allows each include.
TEST_F(Rules, FoldersMakeNoCircle) {
  put("monitor/fresh/f.h", "#pragma once\n#include \"base/a.h\"\n");
  put("monitor/good.cpp", "#include \"monitor/fresh/f.h\"\n");
  EXPECT_TRUE(check_tree(root_).empty());
  put("monitor/fresh/f.cpp", "\n#include \"monitor/m.h\"\n");
  const auto found = check_tree(root_);
  ASSERT_EQ(found.size(), 1u);
  EXPECT_NE(found[0].text.find("are in a circle"), std::string::npos) << found[0].text;
}

TEST_F(Rules, AFolderHasAtMostTwentyUnits) {
  for (int i = 0; i < 19; ++i) put("monitor/unit" + std::to_string(i) + ".cpp", "int x;\n");
  put("monitor/unit0.h", "#pragma once\n");
  put("base/many.cpp", "int x;\n");
  EXPECT_TRUE(check_tree(root_).empty());
  put("monitor/unit19.cpp", "int x;\n");
  const auto found = check_tree(root_);
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].text, "21 units, the limit is 20");
}

TEST_F(Rules, WhatAnotherFileDefinesComesFromItsHeader) {
  put("base/good.h", "#pragma once\nextern const char kText[];\n");
  put("base/good.cpp", "extern \"C\" int f();\nint g() {\n  thread_local int n = 0;\n  return n;\n}\n");
  EXPECT_TRUE(check_tree(root_).empty());
  expect("base/b.cpp", 2, "extern in a source file", "\nextern const char kText[];\n");
  expect("base/b.cpp", 1, "thread_local outside of a function", "static thread_local int n = 0;\n");
}

TEST_F(Rules, OwnHeadersAreRootRelativeAndQuoted) {
  expect("base/b.cpp", 1, "in quotes", "#include <base/a.h>\n");
  expect("base/c.cpp", 1, "no such own header", "#include \"a.h\"\n");
  put("base/d.cpp", "#include \"../base/a.h\"\n");
  const auto found = check_tree(root_);
  ASSERT_FALSE(found.empty());
  EXPECT_NE(found[0].text.find("\"..\""), std::string::npos);
}

TEST_F(Rules, TorchStaysWhereItBelongs) {
  expect("base/b.h", 1, "torch-free, but includes ATen/ATen.h", "#include <ATen/ATen.h>\n");
  put("deploy/models/m.h", "#include \"engine/weights/m.h\"\n");
  expect("cli/b.cpp", 0, "torch-free, but includes ATen/ATen.h through engine/kernels/k.h",
         "#include \"deploy/models/m.h\"\n");
  expect("engine/weights/b.cpp", 1, "plain ATen", "#include <torch/torch.h>\n");
  expect("engine/weights/c.cpp", 1, "no torch::nn", "torch::nn::Linear x;\n");
  expect("engine/kernels/cuda/b.cu", 1, "raw pointers", "#include <ATen/ATen.h>\n");
  expect("engine/weights/b.cu", 0, "live in engine/kernels/cuda", "int x;\n");
}

TEST_F(Rules, SharedVariablesOfTemplatesAreFound) {
  put("engine/kernels/cuda/good.cu", "template <int k>\nvoid f() {\n}\nvoid g() {\n  __shared__ int n;\n}\n");
  EXPECT_TRUE(check_tree(root_).empty());
  expect("engine/kernels/cuda/b.cu", 3, "__shared__ in a template",
         "template <int k>\nvoid f() {\n  __shared__ int n;\n}\n");
}

TEST_F(Rules, LibrariesDoNotPrintAbortOrExit) {
  for (const char* call : {"std::cout << 1;", "std::cerr << 1;", "printf(\"x\");", "std::fprintf(stderr, \"x\");",
                           "std::puts(\"x\");", "perror(\"x\");"})
    expect("data/b.cpp", 2, "never print", std::string("void f() {\n  ") + call + "\n}\n");
  for (const char* call :
       {"abort();", "std::abort();", "exit(1);", "std::exit(1);", "std::terminate();", "::exit (2);"})
    expect("data/b.cpp", 2, "never abort or exit", std::string("void f() {\n  ") + call + "\n}\n");
  put("data/fine.cpp",
      "// printf(\"in a comment\")\n/* abort();\n exit(1); */\nvoid f() {\n  std::snprintf(b, 3, \"exit(1)\");\n  "
      "x.exit(1);\n  _exit(3);\n"
      "  const char* s = R\"(\nprintf(\"x\")\n)\";\n  on_exit(1);\n}\n");
  EXPECT_TRUE(check_tree(root_).empty());
}

TEST_F(Rules, Sizes) {
  const auto repeated = [](const std::string& text, int n) {
    std::string out;
    for (int i = 0; i < n; ++i) out += text;
    return out;
  };
  const auto lines = [&](int n, const std::string& line) { return repeated(line + "\n", n); };
  put("base/long.cpp", lines(500, "int x;"));
  put("base/long.h", lines(250, "int x;"));
  put("base/f.cpp", "void f() {\n" + lines(78, "  g();") + "}\nstruct S {\n  int f() {\n" + lines(78, "    g();") +
                        "  }\n" + lines(50, "  int x;") + "};\n");
  put("base/table.cpp", "constexpr int kTable[] = {\n" + lines(100, "    1,") + "};\n");
  put("base/wide.cpp", "// " + std::string(117, 'x') + "\n// " + lines(1, repeated("→", 117)));
  EXPECT_TRUE(check_tree(root_).empty());
  expect("base/b.cpp", 2, "line of 121 columns", "\n// " + std::string(118, 'x') + "\n");
  expect("base/b.cpp", 1, "line of 121 columns", "// " + repeated("→", 118) + "\n");
  expect("base/b.cpp", 0, "501 lines, the limit is 500", lines(501, "int x;"));
  expect("base/b.h", 0, "251 lines, the limit is 250", lines(251, "int x;"));
  expect("base/b.cpp", 2, "function of 81 lines", "\nvoid f() {\n" + lines(79, "  g();") + "}\n");
  expect("base/b.cpp", 2, "function of 82 lines", "\nvoid f(int a,\n       int b) {\n" + lines(79, "  g();") + "}\n");
  expect("base/b.cpp", 2, "function of 81 lines", "class S {\n  int f() {\n" + lines(79, "    g();") + "  }\n};\n");
}

TEST_F(Rules, Folders) {
  put("tools/b.cpp", "int x;\n");
  const auto found = check_tree(root_);
  ASSERT_EQ(found.size(), 2u);
  EXPECT_EQ(found[0].text, "unknown folder tools");
  EXPECT_EQ(found[1].text, "no row of the table of rooms names its folder");
  fs::remove_all(root_ / "tools");
  expect("distill/b.cpp", 0, "no row of the table", "int x;\n");
  expect("base/util/b.cpp", 0, "catch-all", "int x;\n");
  expect("b.cpp", 0, "live in the folders", "int x;\n");
}

TEST_F(Rules, NoFinishedMergeLeavesAMarker) {
  put("docs/fine.md", "a\n=======\n<<<<<<<\n see \"<<<<<<< \"\n");
  EXPECT_TRUE(check_tree(root_).empty());
  expect("docs/a.md", 2, "conflict marker", "a\n<<<<<<< HEAD\nb\n=======\n");
  expect("net/n.cpp", 1, "conflict marker", ">>>>>>> 1234567 (net: a change)\n");
}

}  // namespace
}  // namespace specdec::architecture
