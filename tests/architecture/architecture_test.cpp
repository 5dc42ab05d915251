#include <gtest/gtest.h>

#include <fstream>
#include <functional>

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
    put("data/shard_reader.h", "#include \"base/a.h\"\n");
    put("data/ingest.h", "#include \"text/t.h\"\n");
    put("engine/kernels/k.h", "#include <ATen/ATen.h>\n#include \"base/a.h\"\n");
    put("engine/kernels/cuda/k.cu", "#include <cuda_runtime.h>\n");
    put("engine/model/m.h", "#include \"engine/kernels/k.h\"\n");
    put("engine/decode/d.h", "#include \"base/a.h\"\n");
    put("distill/x.cpp", "#include \"data/shard_reader.h\"\n#include \"engine/model/m.h\"\n");
    put("deploy/serve/s.h", "#include \"text/t.h\"\n");
    put("deploy/bench/b.cpp", "#include \"engine/decode/d.h\"\n#include \"data/shard_reader.h\"\n");
    put("monitor/m.h", "#include \"base/a.h\"\n");
    put("cli/c.cpp", "#include \"monitor/m.h\"\nint main() { printf(\"x\"); exit(0); }\n");
    put("build-x/y.cpp", "#include \"../z.h\"\n");
  }
  ~Rules() override { fs::remove_all(root_); }

  void put(const std::string& file, const std::string& text) {
    fs::create_directories((root_ / file).parent_path());
    std::ofstream(root_ / file) << text;
  }
  // Expects exactly one violation, in this file at this line.
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
  expect("text/b.cpp", 2, "must not include data/shard_reader.h", "\n#include \"data/shard_reader.h\"\n");
  expect("engine/kernels/b.cpp", 1, "must not include engine/model/m.h", "#include \"engine/model/m.h\"\n");
  expect("engine/model/b.cpp", 1, "must not include engine/decode/d.h", "#include \"engine/decode/d.h\"\n");
  expect("engine/decode/b.cpp", 1, "must not include text/t.h", "#include \"text/t.h\"\n");
  expect("distill/b.cpp", 1, "must not include deploy/serve/s.h", "#include \"deploy/serve/s.h\"\n");
  expect("distill/c.cpp", 1, "must not include data/ingest.h", "#include \"data/ingest.h\"\n");
  expect("deploy/bench/c.cpp", 1, "must not include data/ingest.h", "#include \"data/ingest.h\"\n");
  expect("monitor/b.cpp", 1, "must not include text/t.h", "#include \"text/t.h\"\n");
  expect("base/c.cpp", 1, "must not include net/n.h", "#include \"net/n.h\"\n");
  // The server must not contain code that downloads anything.
  expect("deploy/serve/c.cpp", 1, "must not include net/n.h", "#include \"net/n.h\"\n");
  expect("cli/engine/b.cpp", 1, "must not include engine/model/m.h", "#include \"engine/model/m.h\"\n");
}

TEST_F(Rules, ArrowsInsideOfAFolder) {
  for (const char* file : {"base/schema/s.h",
                           "base/page/p.h",
                           "engine/kernels/cpu/c.h",
                           "engine/kernels/cuda/c.h",
                           "engine/decode/model_runner.h",
                           "engine/decode/controller.h",
                           "engine/decode/step.h",
                           "deploy/report/r.h",
                           "deploy/models/m.h",
                           "deploy/validate/v.h",
                           "deploy/package/p.h",
                           "deploy/serve/engine/e.h",
                           "monitor/machine.h",
                           "monitor/state.h",
                           "monitor/loop_driver.h",
                           "monitor/actions/a.h",
                           "data/row_parser.h",
                           "data/redact.h",
                           "data/shard_writer.h",
                           "data/openai_client.h"})
    put(file, "#pragma once\n");
  put("base/page/good.cpp", "#include \"base/page/p.h\"\n#include \"base/a.h\"\n");
  put("monitor/good.cpp", "#include \"base/page/p.h\"\n");
  put("engine/kernels/good.cpp", "#include \"engine/kernels/cpu/c.h\"\n");
  put("engine/decode/model_runner.cpp", "#include \"engine/model/m.h\"\n");
  put("deploy/validate/good.cpp", "#include \"deploy/models/m.h\"\n#include \"deploy/report/r.h\"\n");
  put("monitor/loop_driver.cpp", "#include \"monitor/actions/a.h\"\n#include \"monitor/machine.h\"\n");
  put("monitor/actions/good.cpp", "#include \"monitor/state.h\"\n");
  put("data/openai_client.cpp", "#include \"net/n.h\"\n");
  EXPECT_TRUE(check_tree(root_).empty());
  const auto no = [&](const std::string& file, const std::string& other) {
    expect(file, 1, "must not include " + other, "#include \"" + other + "\"\n");
  };
  no("base/b.cpp", "base/schema/s.h");
  no("base/c.cpp", "base/page/p.h");
  no("base/page/b.cpp", "base/schema/s.h");
  no("engine/kernels/cpu/b.cpp", "engine/kernels/k.h");
  no("engine/kernels/b.cpp", "engine/kernels/cuda/c.h");
  no("engine/decode/b.cpp", "engine/model/m.h");
  no("engine/decode/cost_model.cpp", "engine/decode/controller.h");
  no("engine/decode/controller.cpp", "engine/decode/step.h");
  no("deploy/report/b.cpp", "deploy/validate/v.h");
  no("deploy/models/b.cpp", "engine/decode/d.h");
  no("deploy/validate/b.cpp", "deploy/package/p.h");
  no("deploy/package/b.cpp", "deploy/report/r.h");
  no("deploy/serve/b.cpp", "deploy/serve/engine/e.h");
  no("monitor/machine.cpp", "monitor/state.h");
  no("monitor/detector.cpp", "monitor/state.h");
  no("monitor/b.cpp", "monitor/actions/a.h");
  no("data/row_parser.cpp", "data/shard_writer.h");
  no("data/redact.cpp", "data/row_parser.h");
  no("data/b.cpp", "net/n.h");
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
  put("deploy/models/m.h", "#include \"engine/model/m.h\"\n");
  expect("cli/b.cpp", 0, "torch-free, but includes ATen/ATen.h through engine/kernels/k.h",
         "#include \"deploy/models/m.h\"\n");
  expect("engine/model/b.cpp", 1, "plain ATen", "#include <torch/torch.h>\n");
  expect("engine/model/c.cpp", 1, "no torch::nn", "torch::nn::Linear x;\n");
  expect("engine/kernels/cuda/b.cu", 1, "raw pointers", "#include <ATen/ATen.h>\n");
  expect("engine/model/b.cu", 0, "live in engine/kernels/cuda", "int x;\n");
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
  expect("tools/b.cpp", 0, "unknown folder tools", "int x;\n");
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
