// Ranks as threads that run one at a time: a rank that waits for the others lets them run. So code that is not made for
// several threads can be run by ranks.
#pragma once

#include <ATen/ATen.h>

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "engine/model/shard.h"

namespace specdec::model {

class Turns {
 public:
  explicit Turns(int count) : given_(static_cast<size_t>(count)) {}

  // Calls f(group) on each of `count` ranks, and returns when all have ended.
  static void run(int count, const std::function<void(const std::shared_ptr<const ShardGroup>&)>& f) {
    Turns turns(count);
    std::vector<std::thread> threads;
    for (int rank = 0; rank < count; ++rank)
      threads.emplace_back([&turns, &f, rank] {
        turns.turn_.lock();
        f(std::make_shared<Group>(turns, rank));
        turns.turn_.unlock();
      });
    for (std::thread& t : threads) t.join();
  }

 private:
  // Returns what all ranks gave. The caller has the turn.
  std::vector<at::Tensor> exchange(int rank, const at::Tensor& own) {
    given_[static_cast<size_t>(rank)] = own.clone();
    std::unique_lock lock(turn_, std::adopt_lock);
    if (++waiting_ == given_.size()) {
      all_ = given_;
      waiting_ = 0;
      ++round_;
      changed_.notify_all();
    } else {
      changed_.wait(lock, [this, round = round_] { return round_ != round; });
    }
    lock.release();
    return all_;
  }

  class Group final : public ShardGroup {
   public:
    Group(Turns& turns, int rank) : turns_(turns), rank_(rank) {}
    int rank() const override { return rank_; }
    int count() const override { return static_cast<int>(turns_.given_.size()); }
    at::Tensor sum(const at::Tensor& own) const override {
      at::Tensor out = at::zeros(own.sizes(), at::kFloat);
      for (const at::Tensor& part : turns_.exchange(rank_, own)) out += part;
      return out;
    }
    at::Tensor join(const at::Tensor& own, int64_t) const override { return at::cat(turns_.exchange(rank_, own), 1); }

   private:
    Turns& turns_;
    int rank_;
  };

  std::mutex turn_;
  std::condition_variable changed_;
  std::vector<at::Tensor> given_, all_;
  size_t waiting_ = 0;
  int round_ = 0;
};

}  // namespace specdec::model
