// The processes ("ranks") that work together. Either they train one draft, each on its share of every batch, or they
// hold one target, each with a share of every matrix. Collectives use c10d: Gloo between CPUs, and NCCL between GPUs.
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

// Thrown when another rank is lost or has ended. This rank's own state is still valid.
struct RankError : Error {
  explicit RankError(const Error& cause) : Error(cause) {}
};

struct RankHooks {
  // Called from another thread when another rank is lost and this rank still waits for the lost rank. Must end the
  // process.
  std::function<void(const Error&)> on_lost;
  double join_seconds = 600;  // time for all ranks to start; the slowest may still download an image or a model
  // Called once if joining the other ranks takes longer than wait_seconds, with a description of what this rank waits
  // for. May be called from another thread or from the joining one. May be empty.
  std::function<void(const std::string&)> on_wait = {};
  double wait_seconds = 10;
  // Called repeatedly while this rank waits for the others to join; may throw to end the wait. May be empty.
  std::function<void()> look = {};
  std::string next = "start all ranks again";  // what the user should do after a rank was lost; appended to messages
};

// Collective functions: all ranks must call them in the same order, and each call returns after every rank has made it.
// They throw RankError: with kNetwork (the caller may try again) if another rank is lost, else with the error that
// ended another rank. With a single process they do nothing.
class Ranks {
 public:
  Ranks();  // a run of a single process
  // Joins the other ranks, and makes the process ignore SIGPIPE. Throws Error(kNetwork) if some ranks do not appear in
  // time, Error(kConfig) if two processes claim the same rank.
  Ranks(const Launch& launch, const RankHooks& hooks, const Clock& clock);
  ~Ranks();
  Ranks(const Ranks&) = delete;
  Ranks& operator=(const Ranks&) = delete;
  static const Ranks& alone();

  int rank() const { return rank_; }
  int count() const { return count_; }
  bool is_first() const { return rank_ == 0; }  // rank 0 decides, writes files and prints
  // Returns this rank's device for the flag --device: with auto or cuda, the GPU of its local rank.
  std::string device(const std::string& flag) const;
  // Sets the device of the tensors that sum(), gather() and broadcast() take; it is the CPU until then. All ranks must
  // call it.
  void use_device(at::Device device) const;
  // Returns this rank's team: `size` neighbouring ranks, numbered 0 to size - 1 within the team. The team's collectives
  // involve only its own ranks. All ranks must call team() after use_device(), with the same size, which must divide
  // count(). The team lives as long as this object. This object's together() also covers errors of the team.
  const Ranks& team(int size) const;

  // Sums one contiguous fp32 tensor over the ranks, in place. All ranks pass the same shape.
  void sum(const at::Tensor& tensor) const;
  // Returns every rank's tensor, by rank. All tensors have the shape and dtype of `own`.
  std::vector<at::Tensor> gather(const at::Tensor& own) const;
  // Replaces each value by its sum over the ranks, which is bit-identical on all ranks.
  void sum(std::span<double> values) const;
  // Sums each tensor over the ranks, in fp32 whatever the dtype. If a tensor is undefined on some ranks, these count it
  // as zeros of the shape shapes[i]. If it is undefined on all ranks, it stays undefined.
  void sum(std::vector<at::Tensor>& tensors, const std::vector<at::Tensor>& shapes) const;
  bool any(bool value) const;  // true if the value is true on one of the ranks
  // Replaces the contents of the tensors by those of rank `from`.
  void broadcast(const std::vector<at::Tensor>& tensors, int from = 0) const;
  std::string broadcast(const std::string& text) const;

  // Runs f(), then waits for the other ranks. If f() throws, the other ranks end with the same error.
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
