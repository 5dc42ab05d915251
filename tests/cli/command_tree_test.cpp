#include "cli/command_tree.h"

#include <gtest/gtest.h>

#include <CLI/CLI.hpp>
#include <map>
#include <set>

#include "cli/command.h"
#include "cli/completion/scripts.h"
#include "cli/manual.h"

namespace specdec::cli {
namespace {

// Returns the command tree of the whole program.
const Command& program() {
  static const Command kRoot = [] {
    CLI::App app{"whole program", "specdec"};
    Global global;
    const EngineRunners runners;
    Cli cli{app, global, runners, {}, {}, {}};
    declare_commands(cli);
    return command_tree(app);
  }();
  return kRoot;
}

// Returns the argument of a small program with one flag, whose value has the name `value`.
Argument argument_named(const std::string& value) {
  CLI::App app{"small program", "specdec"};
  std::string text;
  app.add_option("--flag", text)->type_name(value);
  return command_tree(app).arguments.back();
}

TEST(CommandTree, EveryTextHasANameThatSaysWhatItIs) {
  for (const Command* command : with_subcommands(program()))
    for (const Argument& a : command->arguments) {
      // These flags take any text. CLI11 uses TEXT as the name of a value without a name.
      const std::set<std::string> free_text = {"--bad-word", "--prompt", "--separator", "--why"};
      const std::string name = a.positional ? a.names.front() : a.names.back();
      if (a.value == "TEXT" && !free_text.contains(name))
        ADD_FAILURE() << command->words << " " << name << ": name its value with type_name() where it is declared";
    }
}

TEST(CommandTree, TheHelpNamesEveryChoice) {
  for (const Command* command : with_subcommands(program()))
    for (const Argument& a : command->arguments) {
      const std::set<std::string> explained = {"--draft-dtype", "--loss", "--parts", "--engines", "--admin"};
      if (explained.contains(a.names.back()) || a.value.find(':') != std::string::npos || a.value == kCommandName)
        continue;
      for (const std::string& choice : a.choices)
        EXPECT_NE(a.help.find(choice.substr(0, choice.find(':'))), std::string::npos)
            << command->words << " " << a.names.back() << ": " << choice << " is not in: " << a.help;
    }
}

// The completion scripts of bash and fish decide by a flag's name alone whether it takes a value, so the name must mean
// the same in every command.
TEST(CommandTree, AFlagTakesAValueInEveryCommandOrInNone) {
  std::map<std::string, std::pair<bool, std::string>> seen;
  for (const Command* command : with_subcommands(program()))
    for (const Argument& a : command->arguments)
      for (const std::string& name : a.names) {
        const auto [first, is_new] = seen.try_emplace(name, a.takes_value(), command->words);
        if (!a.positional)
          EXPECT_EQ(first->second.first, a.takes_value())
              << name << ": " << first->second.second << " and " << command->words;
      }
}

TEST(CommandTree, ReadsTheNameOfAValue) {
  const Argument split = argument_named("holdout|train|all");
  EXPECT_EQ(split.choices, (std::vector<std::string>{"holdout", "train", "all"}));
  EXPECT_TRUE(split.only_choices);
  EXPECT_EQ(split.offer, Offer::kNone);
  const Argument source = argument_named("FILE|DIR|URL");
  EXPECT_TRUE(source.choices.empty());
  EXPECT_FALSE(source.only_choices);
  EXPECT_EQ(argument_named("DIR").offer, Offer::kDirectories);
  EXPECT_EQ(argument_named("FILE").offer, Offer::kFiles);
  EXPECT_EQ(argument_named("DURATION").offer, Offer::kNone);
  const Argument spec = argument_named("prune:N|model:MODEL");
  EXPECT_EQ(spec.choices, (std::vector<std::string>{"prune:", "model:"}));
  EXPECT_FALSE(spec.only_choices);
  const Argument parts = argument_named("acceptance|speed,...");
  EXPECT_TRUE(parts.is_list);
  EXPECT_EQ(parts.choices, (std::vector<std::string>{"acceptance", "speed"}));
}

TEST(CommandTree, ReadsWhatTheParserKnows) {
  CLI::App app{"small program", "specdec"};
  std::string text;
  std::vector<std::string> list;
  int64_t count = 0;
  double share = 0;
  bool suffix = false;
  app.add_option("files", list)->required();
  app.add_option("--form", text, "text or json")->check(CLI::IsMember({"text", "json"}))->default_str("text");
  app.add_option("--count", count)->check(CLI::Range(1, 9))->group("Numbers");
  app.add_option("--share", share);
  app.add_option("--names", list)->delimiter(',');
  app.add_flag("-s,--suffix,!--no-suffix", suffix);
  const std::vector<Argument> a = command_tree(app).arguments;
  ASSERT_EQ(a.size(), 7u);  // including --help, which is a[0]
  EXPECT_TRUE(a[1].positional && a[1].required && a[1].repeats);
  EXPECT_EQ(a[2].choices, (std::vector<std::string>{"text", "json"}));
  EXPECT_EQ(a[2].value, "text|json");
  EXPECT_EQ(a[2].default_value, "text");
  EXPECT_FALSE(a[2].repeats);
  EXPECT_EQ(a[3].type, "integer");
  EXPECT_EQ(a[3].group, "Numbers");
  EXPECT_EQ(a[4].type, "number");
  EXPECT_TRUE(a[5].is_list);
  EXPECT_EQ(a[6].type, "flag");
  EXPECT_EQ(a[6].names, (std::vector<std::string>{"-s", "--suffix", "--no-suffix"}));
}

TEST(CommandTree, ScriptsAndPagesQuoteWhatTheShellsAndTroffWouldRead) {
  CLI::App app{"It's a [small]: program", "specdec"};
  std::string text;
  app.add_option("--flag", text, "'one' [two]: three\\four -x")->type_name("FILE");
  app.footer(".dangerous\nExamples:\n  'specdec' --flag x");
  const Command root = command_tree(app);
  EXPECT_NE(zsh_script(root).find(R"('\''one'\'' \[two\]\: three\\four -x)"), std::string::npos);
  EXPECT_NE(fish_script(root).find(R"('\'one\' [two]: three\\four -x')"), std::string::npos);
  const std::string page = manual_page(root, root);
  EXPECT_NE(page.find("\n\\&'one' [two]: three\\efour \\-x\n"), std::string::npos) << page;
  EXPECT_NE(page.find("\n\\&.dangerous\n"), std::string::npos);
  EXPECT_NE(page.find("\n\\&'specdec' \\-\\-flag x\n"), std::string::npos);
}

TEST(CommandTree, JsonListsEveryCommandOnce) {
  const Json json = to_json(program());
  EXPECT_EQ(json["schema"], "specdec.commands/1");
  std::set<std::string> names;
  for (const Json& command : json["commands"]) names.insert(command["command"].get<std::string>());
  EXPECT_EQ(names.size(), json["commands"].size());
  for (const char* name : {"", "data ingest", "monitor check", "package push", "help"})
    EXPECT_TRUE(names.contains(name));
  EXPECT_EQ(find_command(program(), "data ingest")->words, "data ingest");
  EXPECT_EQ(find_command(program(), "nothing"), nullptr);
}

}  // namespace
}  // namespace specdec::cli
