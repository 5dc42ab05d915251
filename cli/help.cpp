// Implements `specdec help [COMMAND...]`.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>

#include "cli/command.h"
#include "cli/command_tree.h"
#include "cli/mistakes.h"

namespace specdec::cli {

void add_help(Cli& cli) {
  CLI::App* sub = cli.app.add_subcommand("help", "Prints the help of a command; with --json all commands and flags");
  auto words = std::make_shared<std::vector<std::string>>();
  sub->add_option("command", *words, "Words of the command, such as data ingest; none: the program itself")
      ->type_name(kCommandName);
  sub->footer("Examples:\n  specdec help monitor check\n  specdec --json help        # for programs that call specdec");
  sub->callback([&cli, words] {
    cli.selected = [&cli, words] {
      const std::string text =
          cli.global.json ? to_json(command_tree(cli.app)).dump() + "\n" : help_of(cli.app, *words);
      std::fputs(text.c_str(), stdout);
      return 0;
    };
  });
}

}  // namespace specdec::cli
