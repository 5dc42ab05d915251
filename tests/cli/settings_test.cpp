// Tests the priority of settings: flags, then SPECDEC_* variables, then the file. Lists follow the same order.
#include "cli/settings.h"

#include <gtest/gtest.h>

#include <CLI/CLI.hpp>
#include <cstdlib>

#include "base/error.h"
#include "base/file.h"
#include "tests/base/scratch.h"

namespace specdec::cli {
namespace {

struct Program {
  CLI::App app{"test"};
  std::vector<std::string> sources, ks;
  int limit = 1;
  std::string config;

  Program() {
    app.add_option("--config", config);
    CLI::App* sub = app.add_subcommand("look", "");
    sub->add_option("--source", sources);
    sub->add_option("--ks", ks)->delimiter(',');
    sub->add_option("--limit", limit);
  }
  void run(std::vector<std::string> words) {
    words.insert(words.begin(), "test");
    std::vector<char*> argv;
    for (std::string& w : words) argv.push_back(w.data());
    apply_settings(app, static_cast<int>(argv.size()), argv.data());
    app.parse(static_cast<int>(argv.size()), argv.data());
  }
};

struct Settings : ::testing::Test {
  testing::Scratch scratch;
  std::string file = (scratch / "specdec.toml").string();
  using Words = std::vector<std::string>;

  Settings() { clear(); }
  ~Settings() override { clear(); }
  static void clear() {
    for (const char* name : {"SPECDEC_LOOK_SOURCE", "SPECDEC_LOOK_KS", "SPECDEC_LOOK_LIMIT", "SPECDEC_LIMIT"})
      ::unsetenv(name);
  }
};

TEST_F(Settings, ListsStayLists) {
  write_file_atomic(file, "[look]\nsource = [\"a b\", \"c,d\"]\nks = [1, 2]\n");
  Program p;
  p.run({"--config", file, "look"});
  EXPECT_EQ(p.sources, (Words{"a b", "c,d"}));
  EXPECT_EQ(p.ks, (Words{"1", "2"}));
  // The engine process inherits the environment and gets the same values from it.
  Program engine;
  engine.run({"look"});
  EXPECT_EQ(engine.sources, (Words{"a b", "c,d"}));
  EXPECT_EQ(engine.ks, (Words{"1", "2"}));
}

TEST_F(Settings, TheTableOfACommandIsNoValueOfAFlagWithItsName) {
  write_file_atomic(file, "[limit]\nother = 3\n");
  Program p;
  int other = 0;
  p.app.add_subcommand("limit", "")->add_option("--other", other);
  p.run({"--config", file, "look"});
  EXPECT_EQ(p.limit, 1);
}

TEST_F(Settings, FlagsOverEnvironmentOverFile) {
  write_file_atomic(file, "limit = 2\n[look]\nlimit = 3\nks = [1, 2]\nsource = [\"a\", \"b\"]\n");
  Program from_file;
  from_file.run({"--config", file, "look"});
  EXPECT_EQ(from_file.limit, 3);
  clear();
  ::setenv("SPECDEC_LIMIT", "4", 1);
  Program from_environment;
  from_environment.run({"--config", file, "look"});
  EXPECT_EQ(from_environment.limit, 4);
  clear();
  Program from_flags;
  from_flags.run({"--config", file, "look", "--limit", "5", "--ks", "7,8", "--source", "x", "y"});
  EXPECT_EQ(from_flags.limit, 5);
  EXPECT_EQ(from_flags.ks, (Words{"7", "8"}));
  EXPECT_EQ(from_flags.sources, (Words{"x", "y"}));
}

TEST_F(Settings, UnknownKeysAreNamed) {
  write_file_atomic(file, "[look]\nlimt = 3\n");
  Program p;
  try {
    p.run({"--config", file, "look"});
    FAIL() << "an unknown key was taken";
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("did you mean 'limit'"), std::string::npos) << e.what();
  }
}

TEST_F(Settings, LettersOutsideOfAsciiStandInQuotes) {
  write_file_atomic(
      file,
      "[look]\nsource = [\"\u00fc\\t\u00fc\", '\\\u00fc', \"\"\"\n\u00fc\\\n  \u00fca \u00fc\"\"\"\"\"]  # \u00fc\n");
  Program p;
  p.run({"--config", file, "look"});
  EXPECT_EQ(p.sources, (std::vector<std::string>{"\u00fc\t\u00fc", "\\\u00fc", "\u00fc\u00fca \u00fc\"\""}));
}

// Files that once crashed the program, or could have, by a failed assertion of the parser or a stack overflow.
TEST_F(Settings, DeepFilesAreRefusedByTheirLine) {
  const auto many = [](const std::string& one, int count) {
    std::string all;
    for (int i = 0; i < count; ++i) all += one;
    return all;
  };
  for (const char* const text : {"x = 1979-05-27T\x01:32:00Z", "x = 1979-05-27T::", "x = [1979-05-27 \x02]", "x = '''",
                                 "x = \"\"\""}) {  // these fail an assertion of the parser
    write_file_atomic(file, text);
    testing::expect_error(ErrorKind::kConfig, {"specdec.toml"}, [&] { Program().run({"--config", file, "look"}); });
  }
  const std::string letter = "\xC3\xBC";  // ü
  for (const std::string& text :
       {std::string("\xEF\xBB\xB9"), "m" + letter + "ller = 1", "\"m" + letter + "ller\" = 1",
        std::string("x = \xE2\x80\x9Cno quotes\xE2\x80\x9D"), "x = \"\\" + letter + "\"", "x = \"\"\"\\" + letter,
        "x = \"\"\"a\"\"\"\" " + letter, "x = 1\"q" + letter, "x = 0<Z.[\"" + letter}) {
    write_file_atomic(file, text);
    testing::expect_error(ErrorKind::kConfig, {"specdec.toml:1: "}, [&] { Program().run({"--config", file, "look"}); });
  }
  write_file_atomic(file, "x = \"\xFF\xFE\"");
  testing::expect_error(ErrorKind::kConfig, {"specdec.toml: not UTF-8"},
                        [&] { Program().run({"--config", file, "look"}); });
  const std::string dots = many("a.", 100000) + "a";
  for (const std::string& text : {dots + " = 1", "[" + dots + "]", "[[" + dots + "]]", "x = {" + dots + " = 1}",
                                  many("a . ", 100000) + "a = 1", many("\"a\".", 100000) + "a = 1",
                                  many("a.", 32) + "a = 1", "x = " + many("[", 100000), "x = " + many("{a=", 100000)}) {
    write_file_atomic(file, "# one. two\n" + text + "\n");
    testing::expect_error(ErrorKind::kConfig, {"specdec.toml:2: "}, [&] { Program().run({"--config", file, "look"}); });
  }
  write_file_atomic(file, "# " + dots + "\n[look]\nlimit = 3 # " + dots + "\nsource = [\"" + dots + "\", '" + dots +
                              "', \"\"\"\n" + dots + "\"\"\"]\n");
  Program p;
  p.run({"--config", file, "look"});
  EXPECT_EQ(p.limit, 3);
  EXPECT_EQ(p.sources.size(), 3u);
}

TEST_F(Settings, AnErrorNamesWhereTheValueCameFrom) {
  write_file_atomic(file, "ks = [1, 2]\n[look]\nlimit = \"abc\"\n");
  const auto origins_of = [&](std::vector<std::string> words) {
    Program p;
    words.insert(words.begin(), "test");
    std::vector<char*> argv;
    for (std::string& w : words) argv.push_back(w.data());
    return apply_settings(p.app, static_cast<int>(argv.size()), argv.data());
  };
  const Words look = {"--config", file, "look"};
  const std::string message = "--limit: expected a number, found 'abc'";
  EXPECT_EQ(named_by_origin(message, origins_of(look), look), file + ": [look] limit: expected a number, found 'abc'");
  EXPECT_EQ(named_by_origin(message, origins_of(look), look), file + ": [look] limit: expected a number, found 'abc'")
      << "also in the engine process, which finds it in the environment";
  EXPECT_EQ(named_by_origin("--ks 1: no", origins_of(look), look), file + ": ks 1: no");
  EXPECT_EQ(named_by_origin(message, origins_of(look), {"look", "--limit=abc"}), message);
  EXPECT_EQ(named_by_origin("--source: no", origins_of(look), look), "--source: no");
  clear();
  ::setenv("SPECDEC_LIMIT", "abc", 1);
  EXPECT_EQ(named_by_origin(message, origins_of({"look"}), {"look"}), "SPECDEC_LIMIT: expected a number, found 'abc'");
}

TEST_F(Settings, AVariableThatIsNoSettingIsWarnedOf) {
  const Program p;
  EXPECT_EQ(unknown_variables(p.app, "look",
                              {"SPECDEC_LOOK_LIMTI=1", "SPECDEC_LOOK_LIMIT=1", "SPECDEC_LOOKS_X=1",
                               "SPECDEC_TORCH_LIB=/x", "SPECDEC_LOOK_WHOLLY_DIFFERENT=", "HOME=/"}),
            (Words{"SPECDEC_LOOK_LIMTI sets nothing (did you mean SPECDEC_LOOK_LIMIT?)",
                   "SPECDEC_LOOK_WHOLLY_DIFFERENT sets nothing"}));
}

}  // namespace
}  // namespace specdec::cli
