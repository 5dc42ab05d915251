// Checks that every example in the help of every command can be pasted into a shell and has valid arguments.
#include <gtest/gtest.h>

#include <CLI/CLI.hpp>
#include <sstream>

#include "base/error.h"
#include "cli/command.h"
#include "cli/command_tree.h"
#include "cli/program.h"

namespace specdec::cli {
namespace {

// Splits a line as a POSIX shell does, up to a comment, a pipe or a redirection. Returns nullopt if a quote is not
// closed.
std::optional<std::vector<std::string>> shell_split(const std::string& line) {
  std::vector<std::string> words;
  std::string word;
  bool in_word = false;
  char quote = 0;
  const auto end_word = [&] {
    if (in_word) words.push_back(std::exchange(word, ""));
    in_word = false;
  };
  for (size_t i = 0; i < line.size(); ++i) {
    const char c = line[i];
    if (quote != 0) {
      if (c == quote)
        quote = 0;
      else if (c == '\\' && quote == '"' && i + 1 < line.size())
        word += line[++i];
      else
        word += c;
    } else if (c == '\'' || c == '"') {
      quote = c, in_word = true;
    } else if (c == ' ') {
      end_word();
    } else if (!in_word && (c == '#' || c == '|' || c == '>')) {
      break;
    } else if (c == ')') {  // closes <(specdec …)
      break;
    } else {
      word += c, in_word = true;
    }
  }
  end_word();
  return quote == 0 ? std::optional(words) : std::nullopt;
}

// Returns the example lines of a help text. A continued line is joined with the next one.
std::vector<std::string> examples_of(const std::string& footer) {
  std::vector<std::string> lines;
  std::istringstream in(footer);
  bool listed = false, continued = false;
  for (std::string line; std::getline(in, line);) {
    if (line.starts_with("Example")) {
      listed = true;
    } else if (!line.starts_with("  ")) {
      listed = false;
    } else if (listed) {
      if (continued)
        lines.back() += line;
      else
        lines.push_back(line);
      continued = lines.back().ends_with("\\");
      if (continued) lines.back().pop_back();
    }
  }
  return lines;
}

TEST(Examples, EveryOneCanBePasted) {
  CLI::App app{"whole program", "specdec"};
  Global global;
  const EngineRunners runners;
  Cli cli{app, global, runners, {}, {}, {}};
  declare_commands(cli);
  const Command root = command_tree(app);
  int found = 0;
  for (const Command* command : with_subcommands(root))
    for (const std::string& line : examples_of(command->footer)) {
      const auto words = shell_split(line);
      ASSERT_TRUE(words) << command->words << ": an open quote: " << line;
      const auto program = std::find_if(words->begin(), words->end(), [](const std::string& word) {
        return word == "specdec" || word == "<(specdec";
      });
      if (program == words->end()) {
        EXPECT_EQ(words->front(), "curl") << command->words << ": " << line;
        continue;
      }
      ++found;
      EXPECT_NO_THROW(check_command_line({program + 1, words->end()})) << command->words << ": " << line;
    }
  EXPECT_GT(found, 50);
}

TEST(Examples, AWordTooManyIsSeen) {
  for (const char* line :
       {"distill --target T --data d --draft prune:2 --out run --resume after a stop", "demo the story"}) {
    const auto words = shell_split(line);
    EXPECT_ANY_THROW(check_command_line(*words)) << line;
  }
}

}  // namespace
}  // namespace specdec::cli
