// Verifies one sequence's drafted tokens with a block of threads.
#pragma once

#include "engine/kernels/cuda/block_team.h"
#include "engine/rules/chain_rules.h"
#include "engine/rules/tree_rules.h"

namespace specdec::kernels::cuda {

// The shared memory that a block needs for one task.
struct TaskMemory {
  TeamMemory team;
  double numbers[2 * kMaxVerifyNodes + 2];
  int32_t flags[2 * kMaxVerifyNodes + 2];
  VerifyNode nodes[kMaxVerifyNodes];
};

// The Rows (rules/team.h) of one task. Verification overwrites the rows of the pass itself.
class TaskRows {
 public:
  // Copies the task's nodes to shared memory. count() excludes the absent nodes at the end.
  template <class Choices>
  __device__ TaskRows(const VerifyPass& pass, const VerifyTask& task, BlockTeam<Choices>& team, TaskMemory& memory,
                      float* left)
      : pass_(pass), task_(task), memory_(memory), left_(left), count_(task.count) {
    team.for_each(task.count, [&](int i) {
      VerifyNode node = pass.nodes[task.first + i];
      if (node.token < 0) node.parent = rules::kAbsent;
      memory.nodes[i] = node;
    });
    while (count_ > 0 && token(count_ - 1) < 0) --count_;  // a chain ends before its absent nodes
  }
  __device__ int count() const { return count_; }
  __device__ int vocab() const { return pass_.vocab; }
  __device__ int32_t token(int i) const { return memory_.nodes[i].token; }
  __device__ int parent(int i) const { return memory_.nodes[i].parent; }
  __device__ const float* p(int i) const { return mutable_p(i); }
  __device__ const float* q(int i) const { return mutable_q(i); }
  __device__ float* mutable_p(int i) const { return pass_.p + static_cast<int64_t>(task_.p_row + i) * pass_.vocab; }
  __device__ float* mutable_q(int i) const {
    return pass_.q + static_cast<int64_t>(memory_.nodes[i].q_row) * pass_.vocab;
  }
  __device__ float* left() const { return left_; }
  __device__ int32_t likeliest(int i) const { return pass_.likeliest[task_.p_row + i]; }
  __device__ double& number(int i) const { return memory_.numbers[i]; }
  __device__ int32_t& flags(int i) const { return memory_.flags[i]; }

 private:
  const VerifyPass& pass_;
  const VerifyTask& task_;
  TaskMemory& memory_;
  float* left_;
  int count_;
};

template <class Choices>
__device__ rules::Verdict verify_task(BlockTeam<Choices>& team, TaskRows& rows, const VerifyTask& task) {
  switch (task.rule) {
    case DeviceRule::kTokenChain:
      return rules::verify_token(team, rows);
    case DeviceRule::kBlockChain:
      return rules::verify_block(team, rows);
    case DeviceRule::kTokenTree:
      return rules::verify_recursive(team, rows);
    case DeviceRule::kBlockTree:
      return rules::verify_traversal(team, rows);
    case DeviceRule::kTarget:
      return rules::verify_target(team, rows);
    case DeviceRule::kCoupled:
      return rules::verify_coupled(team, rows, task.position);
    case DeviceRule::kGreedy:
      return rules::follow(rows, [&](int64_t, int node) { return rows.likeliest(node + 1); });
  }
  return {};
}

// Verifies task `number` of the pass with `choices`, and writes all fields of the outcome except its cursors.
template <class Choices>
__device__ void run_task(const VerifyPass& pass, int number, TaskMemory& memory, Choices& choices) {
  const VerifyTask task = pass.tasks[number];
  BlockTeam<Choices> team(memory.team, choices);
  TaskRows rows(pass, task, team, memory, pass.left + static_cast<int64_t>(number) * pass.vocab);
  const rules::Verdict verdict = verify_task(team, rows, task);
  team.once([&] {
    VerifyOutcome& out = pass.outcomes[number];
    out.accepted = static_cast<int32_t>(verdict.accepted);
    out.next = verdict.next;
    out.node = verdict.node;
    out.failed = team.failed() ? 1 : 0;
  });
}

}  // namespace specdec::kernels::cuda
