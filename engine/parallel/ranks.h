// The processes ("ranks") that work together: they train one draft, each on its share of every batch, or hold one
// target, each a share of every matrix. Sums and broadcasts go over c10d: Gloo between CPUs, and NCCL between GPUs.
#pragma once

#include <ATen/core/Tensor.h>

#include <exception>
#include <functional>
#include <memory>
#include <new>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/device_lost.h"
#include "base/error.h"
#include "engine/parallel/launch.h"

namespace specdec::parallel {

// Thrown when another rank is lost or has ended: this rank's own state is sound.
struct RankError : Error {
  explicit RankError(const Error& cause) : Error(cause) {}
};

struct RankHooks {
  // Called from another thread when another rank is lost and this one waits for it. It must end the process.
  std::function<void(const Error&)> on_lost;
  double join_seconds = 600;  // for all ranks to start; the slowest may still fetch an image or a model
  // Is told once what this rank waits for, if joining the others takes longer than wait_seconds. Called from another
  // thread, or from the one that joins. May be empty.
  std::function<void(const std::string&)> on_wait = {};
  double wait_seconds = 10;
  // Called again and again while this rank waits for the others to join; may throw to end the wait. May be empty.
  std::function<void()> look = {};
  std::string next = "start all ranks again";  // what a user does after a rank was lost; the end of a message
};

// The collective functions wait until every rank has called them, in the same order. They throw RankError: of
// kNetwork if another rank is lost, else with the error that ended another rank. A process alone does nothing in them.
class Ranks {
 public:
  Ranks();  // this process alone
  // Joins the other ranks, and makes the process ignore SIGPIPE. Throws Error(kNetwork) if they do not come,
  // Error(kConfig) if two claim to be the same.
  Ranks(const Launch& launch, const RankHooks& hooks, const Clock& clock);
  ~Ranks();
  Ranks(const Ranks&) = delete;
  Ranks& operator=(const Ranks&) = delete;
  static const Ranks& alone();

  int rank() const { return rank_; }
  int count() const { return count_; }
  bool is_first() const { return rank_ == 0; }  // rank 0 decides, writes files and prints
  // Returns the device that --device `flag` means for this rank: with auto or cuda the GPU of its local rank.
  std::string device(const std::string& flag) const;
  // Chooses where the tensors of sum(), gather() and broadcast() are. All ranks must call it. Without a call, the
  // tensors are on the CPU.
  void use_device(at::Device device) const;
  // Returns the team of this rank: `size` neighbours, which have the numbers 0 to size - 1 in it and whose collective
  // functions wait for each other alone. Called by all ranks, after use_device(), with the same size, which divides
  // count(). The team lives as long as these ranks. together() of these ranks also covers what the team does.
  const Ranks& team(int size) const;

  // Adds up one contiguous fp32 tensor in place. Its shape is the same on all ranks.
  void sum(const at::Tensor& tensor) const;
  // Returns every rank's tensor, by rank. All have the shape and dtype of `own`.
  std::vector<at::Tensor> gather(const at::Tensor& own) const;
  // Replace each value by its sum over the ranks, which has the same bits on all of them.
  void sum(std::span<double> values) const;
  // Tensors may be undefined on some ranks, where they then become zeros like shapes[i] before they are added; those
  // undefined on all ranks stay so. Sums are in fp32 whatever the dtype.
  void sum(std::vector<at::Tensor>& tensors, const std::vector<at::Tensor>& shapes) const;
  bool any(bool value) const;  // true if the value is true on one of the ranks
  // Replace the contents by those of rank `from`.
  void broadcast(const std::vector<at::Tensor>& tensors, int from = 0) const;
  std::string broadcast(const std::string& text) const;

  // Runs f(), then waits for the other ranks. If f throws, the other ranks end with the same error.
  template <class F>
  auto together(const F& f) const {
    try {
      auto result = f();
      leave();
      return result;
    } catch (const Error& e) {
      fail(e);
      throw;
    } catch (const std::bad_alloc&) {
      fail(Error(ErrorKind::kDevice, "out of memory"));
      throw;
    } catch (const DeviceLost& lost) {
      fail(Error(lost.kind(), lost.what()));
      throw;
    } catch (const std::exception& e) {
      fail(Error(ErrorKind::kInternal, e.what()));
      throw;
    }
  }

 private:
  void leave() const;
  void fail(const Error& error) const;

  struct Group;
  explicit Ranks(std::unique_ptr<Group> team);

  int rank_ = 0, count_ = 1;
  std::unique_ptr<Group> group_;
};

}  // namespace specdec::parallel
