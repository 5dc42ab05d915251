// Runs ranks as threads, of which only one runs at a time, so that several ranks can run code that is not thread-safe.
// While a rank waits for the others, they run. A rank that waits for a rank that has ended throws DeviceLost.
#pragma once

#include <ATen/ATen.h>

#include <condition_variable>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/device_lost.h"
#include "engine/config/shard.h"

namespace specdec::model {

class Turns {
 public:
  explicit Turns(int count) : given_(static_cast<size_t>(count)) {}

  // Calls f(group) on each of `count` ranks and waits for all. Returns the error text of each rank, "" without an
  // error.
  static std::vector<std::string> run(int count,
                                      const std::function<void(const std::shared_ptr<const ShardGroup>&)>& f) {
    Turns turns(count);
    std::vector<std::string> errors(static_cast<size_t>(count));
    std::vector<std::thread> threads;
    for (int rank = 0; rank < count; ++rank)
      threads.emplace_back([&turns, &f, &errors, rank] {
        const std::lock_guard turn(turns.turn_);
        try {
          f(std::make_shared<Group>(turns, rank));
        } catch (const std::exception& e) {
          errors[static_cast<size_t>(rank)] = e.what();
        } catch (const DeviceLost& lost) {
          errors[static_cast<size_t>(rank)] = lost.what();
        }
        turns.ended_ = true;
        turns.changed_.notify_all();
      });
    for (std::thread& t : threads) t.join();
    return errors;
  }

 private:
  // Passes `own` to all ranks and returns the tensors of all ranks. Must be called by the rank whose turn it is.
  std::vector<at::Tensor> exchange(int rank, const at::Tensor& own) {
    given_[static_cast<size_t>(rank)] = own.clone();
    std::unique_lock lock(turn_, std::adopt_lock);
    const int round = round_;
    if (++waiting_ == given_.size() && !ended_) {
      all_ = given_;
      waiting_ = 0;
      ++round_;
      changed_.notify_all();
    } else {
      changed_.wait(lock, [&] { return round_ != round || ended_; });
    }
    lock.release();
    if (round_ == round) throw DeviceLost("another rank is gone");
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
    void broadcast(const at::Tensor& tensor) const override {
      const at::Tensor first = turns_.exchange(rank_, tensor)[0];
      if (rank_ != 0) tensor.copy_(first);
    }

   private:
    Turns& turns_;
    int rank_;
  };

  std::mutex turn_;
  std::condition_variable changed_;
  std::vector<at::Tensor> given_, all_;
  size_t waiting_ = 0;
  int round_ = 0;
  bool ended_ = false;  // one of the ranks has ended
};

}  // namespace specdec::model
