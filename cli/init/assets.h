// The files that `specdec init` writes, embedded as strings. cmake/embed.cmake generates the definitions from
// cli/init/assets/.
#pragma once

namespace specdec::cli {

extern const char kLoopToml[], kSpecdecToml[], kGithubYaml[], kGitlabYaml[], kServiceUnit[], kTimerUnit[], kServeUnit[],
    kStorageYaml[], kSecretYaml[], kServeYaml[], kCronJobYaml[], kSlurmScript[], kSlurmJob[], kSlurmSubmit[],
    kJobYaml[], kKubernetesSubmit[], kJobSetYaml[], kPyTorchJobYaml[], kRulesYaml[], kDashboardJson[];

}  // namespace specdec::cli
