#include "cli/mistakes.h"

#include <gtest/gtest.h>

#include <CLI/CLI.hpp>

#include "base/error.h"
#include "cli/suggestion.h"
#include "tests/base/scratch.h"

namespace specdec::cli {
namespace {

using testing::expect_error;

TEST(Suggestion, NamesTheNearestWord) {
  const std::vector<std::string> known = {"target", "draft", "data", "max-tokens", "api-keys", "temperature", "k"};
  EXPECT_EQ(nearest("targt", known), "target") << "a letter left out";
  EXPECT_EQ(nearest("tarrget", known), "target") << "doubled";
  EXPECT_EQ(nearest("tagret", known), "target") << "swapped";
  EXPECT_EQ(nearest("dat", known), "data");
  EXPECT_EQ(nearest("max_tokens", known), "max-tokens");
  EXPECT_EQ(nearest("MAX-TOKENS", known), "max-tokens");
  EXPECT_EQ(nearest("api-key", known), "api-keys");
  EXPECT_EQ(nearest("temp", known), "temperature") << "the only one that begins so";
  EXPECT_EQ(nearest("quantise", known), "") << "nothing is like it";
  EXPECT_EQ(nearest("x", known), "") << "every one-letter name would be one mistake away";
  EXPECT_EQ(nearest("", known), "");
  EXPECT_EQ(nearest("api-key", {"tls-key", "tls-cert", "api-key-file"}), "api-key-file") << "its beginning";
}

class Mistakes : public ::testing::Test {
 protected:
  Mistakes() {
    app_.require_subcommand(1);
    app_.set_version_flag("-V,--version", "1");
    app_.add_flag("-v,--verbose");
    app_.add_option("--config", text_);
    CLI::App* serve = app_.add_subcommand("serve", "");
    serve->add_option("--target", text_);
    serve->add_option("--api-keys", text_);
    serve->add_option("PACKAGE", text_);
    serve->add_option_group("limits")->add_option("--max-batch", text_);
    CLI::App* data = app_.add_subcommand("data", "");
    data->require_subcommand(1);
    data->add_subcommand("ingest", "Reads logs")->add_option("--out", text_);
    data->add_subcommand("regenerate", "")->add_option("--api-key", text_);
  }
  void right(const std::vector<std::string>& words) { EXPECT_NO_THROW(refuse_mistakes(app_, words)) << words.back(); }
  void wrong(const std::vector<std::string>& words, const std::vector<std::string>& parts) {
    expect_error(ErrorKind::kUsage, parts, [&] { refuse_mistakes(app_, words); });
  }
  CLI::App app_{"", "specdec"};
  std::string text_;
};

TEST_F(Mistakes, WhatIsRightPasses) {
  right({"serve", "store:production", "--target", "--not-a-flag-but-a-value"});
  right({"serve", "--target=x", "-v", "--max-batch", "4"});
  right({"--config", "data", "serve", "x"});
  right({"data", "ingest", "a.jsonl", "b.jsonl", "--out", "-1"});
  right({"data", "ingest", "-", "--", "--anything"});
  right({"--version"});
  right({"-V"});
  right({"data", "--help"});
  right({"--help"});
}

TEST_F(Mistakes, AFlagThatIsNoneIsNamed) {
  wrong({"serve", "--targt", "x"},
        {"--targt: specdec serve has no such flag: did you mean --target? See specdec help serve"});
  wrong({"data", "ingest", "x", "--uot=y"}, {"--uot: specdec data ingest has no such flag: did you mean --out?"});
  wrong({"serve", "--api-key", "x"},
        {"--api-key: specdec serve has no such flag (specdec data regenerate has it)", "did you mean --api-keys?"});
  wrong({"serve", "--wholly-different"}, {"no such flag: see specdec help serve"});
  wrong({"serve", "-z"}, {"-z: specdec serve has no such flag"});
  wrong({"--verbos", "serve"}, {"--verbos: specdec has no such flag: did you mean --verbose?"});
}

TEST_F(Mistakes, ACommandThatIsNoneIsNamed) {
  wrong({"serv", "x"}, {"unknown command 'serv': did you mean 'serve'? See specdec help"});
  wrong({"data", "ingset"}, {"unknown command 'data ingset': did you mean 'ingest'? See specdec help data"});
  wrong({"ingest", "x"}, {"unknown command 'ingest': did you mean 'data ingest'?"});
  wrong({"version"}, {"did you mean --version?"});
  wrong({"download", "x"}, {"unknown command 'download': did you mean 'fetch'?"});
  wrong({"data", "foo"}, {"unknown command 'data foo': see specdec help data"});
  wrong({"data", "serve"}, {"unknown command 'data serve': did you mean 'serve'?"});
  wrong({"qqqqqq"}, {"unknown command 'qqqqqq': see specdec help"});
  wrong({}, {"specdec: no command given, expected one of serve, data: see specdec help"});
  wrong({"data", "-v"}, {"specdec data: no command given, expected one of ingest, regenerate"});
}

TEST_F(Mistakes, HelpOfACommand) {
  EXPECT_NE(help_of(app_, {}).find("serve"), std::string::npos);
  const std::string help = help_of(app_, {"data", "ingest"});
  EXPECT_NE(help.find("Reads logs"), std::string::npos) << help;
  EXPECT_NE(help.find("specdec data ingest"), std::string::npos) << help;
  EXPECT_EQ(help.find("regenerate"), std::string::npos) << help;
  expect_error(ErrorKind::kUsage, {"did you mean 'serve'"}, [&] { help_of(app_, {"serv"}); });
}

TEST(ConversionMessage, ANumberThatCannotBeReadIsNamed) {
  EXPECT_EQ(conversion_message("Could not convert: --floor = x"), "--floor: expected a number, found 'x'");
  EXPECT_EQ(conversion_message("--out is required"), "--out is required");
}

}  // namespace
}  // namespace specdec::cli
