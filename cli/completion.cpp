// Implements `specdec completion bash|zsh|fish`.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>

#include "cli/command.h"
#include "cli/completion/scripts.h"

namespace specdec::cli {

void add_completion(Cli& cli) {
  CLI::App* sub = cli.app.add_subcommand("completion", "Prints the completion script of bash, zsh or fish");
  auto shell = std::make_shared<std::string>();
  sub->add_option("shell", *shell, "bash | zsh | fish")->required()->check(CLI::IsMember({"bash", "zsh", "fish"}));
  sub->footer(
      "Examples:\n"
      "  source <(specdec completion bash)                                            # in ~/.bashrc\n"
      "  source <(specdec completion zsh)                                             # in ~/.zshrc, after compinit\n"
      "  specdec completion fish > ~/.config/fish/completions/specdec.fish\n"
      "An installed specdec brings these files.");
  sub->callback([&cli, shell] {
    cli.selected = [&cli, shell] {
      const Command root = command_tree(cli.app);
      const std::string script = *shell == "bash"  ? bash_script(root)
                                 : *shell == "zsh" ? zsh_script(root)
                                                   : fish_script(root);
      std::fputs(script.c_str(), stdout);
      return 0;
    };
  });
}

}  // namespace specdec::cli
