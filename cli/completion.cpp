// `specdec completion bash|zsh|fish`: generates the script from the CLI11 objects that also parse the command line.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>
#include <sstream>

#include "base/error.h"
#include "cli/command.h"

namespace specdec::cli {

namespace {

std::string flags_of(const CLI::App& app) {
  std::string text;
  for (const CLI::Option* option : app.get_options())
    for (const std::string& name : option->get_lnames()) text += (text.empty() ? "--" : " --") + name;
  return text;
}

std::string names_of(const CLI::App& app) {
  std::string text;
  for (const CLI::App* sub : app.get_subcommands({})) text += (text.empty() ? "" : " ") + sub->get_name();
  return text;
}

void print_bash(const CLI::App& app) {
  std::printf(
      "_specdec() {\n  local word=${COMP_WORDS[COMP_CWORD]} options\n  case \"${COMP_WORDS[1]} ${COMP_WORDS[2]}\" "
      "in\n");
  for (const CLI::App* sub : app.get_subcommands({})) {
    const char* name = sub->get_name().c_str();
    for (const CLI::App* nested : sub->get_subcommands({}))
      std::printf("    \"%s %s\") options=\"%s\" ;;\n", name, nested->get_name().c_str(), flags_of(*nested).c_str());
    std::printf("    \"%s \"*) options=\"%s %s\" ;;\n", name, names_of(*sub).c_str(), flags_of(*sub).c_str());
  }
  std::printf("    *) options=\"%s %s\" ;;\n  esac\n", names_of(app).c_str(), flags_of(app).c_str());
  std::printf("  COMPREPLY=($(compgen -W \"$options\" -- \"$word\"))\n");
  std::printf(
      "  [ ${#COMPREPLY[@]} -gt 0 ] || COMPREPLY=($(compgen -f -- \"$word\"))\n}\ncomplete -o filenames -F _specdec "
      "specdec\n");
}

void print_fish_flags(const CLI::App& app, const std::string& seen) {
  for (const CLI::Option* option : app.get_options())
    for (const std::string& name : option->get_lnames())
      std::printf("complete -c specdec -n '__fish_seen_subcommand_from %s' -l %s\n", seen.c_str(), name.c_str());
}

void print_fish(const CLI::App& app) {
  for (const CLI::App* sub : app.get_subcommands({})) {
    std::printf("complete -c specdec -n __fish_use_subcommand -a %s\n", sub->get_name().c_str());
    print_fish_flags(*sub, sub->get_name());
    for (const CLI::App* nested : sub->get_subcommands({})) {
      std::printf("complete -c specdec -n '__fish_seen_subcommand_from %s' -a %s\n", sub->get_name().c_str(),
                  nested->get_name().c_str());
      print_fish_flags(*nested, nested->get_name());
    }
  }
}

}  // namespace

void add_completion(Cli& cli) {
  CLI::App* sub = cli.app.add_subcommand("completion", "Prints shell completion for bash, zsh or fish");
  auto shell = std::make_shared<std::string>();
  sub->add_option("shell", *shell, "bash | zsh | fish")->required()->check(CLI::IsMember({"bash", "zsh", "fish"}));
  sub->footer("Example:\n  source <(specdec completion bash)");
  sub->callback([&cli, shell] {
    cli.selected = [&cli, shell] {
      if (*shell == "zsh") std::printf("autoload -U +X bashcompinit && bashcompinit\n");
      if (*shell == "fish")
        print_fish(cli.app);
      else
        print_bash(cli.app);
      return 0;
    };
  });
}

}  // namespace specdec::cli
