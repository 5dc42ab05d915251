// The files that `specdec init` writes, embedded as strings. cmake/embed.cmake generates the definitions from
// cli/init/assets/.
#pragma once

namespace specdec::cli {

extern const char kLoopToml[], kSpecdecToml[], kGithubYaml[], kGitlabYaml[], kServiceUnit[], kTimerUnit[],
    kCronJobYaml[], kSlurmScript[], kJobSetYaml[], kRulesYaml[], kDashboardJson[];

}  // namespace specdec::cli
