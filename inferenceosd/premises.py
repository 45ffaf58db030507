"""What a daemon must have to itself before its first task: folders, sockets, descriptors."""

import os
import socket
from contextlib import ExitStack
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from inferenceosd.descriptors import TooFewDescriptors, claim_descriptors
from inferenceosd.door.listening import (
    CannotListen,
    address_of,
    are_local,
    is_local,
    listen_on,
    listen_privately,
)
from inferenceosd.door.lock import DoorLock
from inferenceosd.ground import (
    CannotUseFolder,
    clear_ground,
    keep_temporary_files_in,
    private_folder,
)
from inferenceosd.platform_folders import own_model_dir, own_store_dir
from inferenceosd.service_manager import ServiceManager
from inferenceosd.settings.config import Config
from inferenceosd.state_lock import CannotLock, StateLocked, locked
from supervisor.children.leftovers import mark_of, marked_children
from supervisor.desired import Ground
from supervisor.moving.slots import remove_left_files

CANNOT_START = (CannotListen, CannotLock, CannotUseFolder, StateLocked, TooFewDescriptors)


class Doors(Struct, frozen=True):
    """Sockets that listen already."""

    public: tuple[socket.socket, ...]
    admin: socket.socket
    lock: DoorLock

    @property
    def listen(self) -> tuple[str, ...]:
        """What clients connect to."""
        return tuple(address_of(sock) for sock in self.public)


def premises(config: Config, manager: ServiceManager, held: ExitStack) -> tuple[Doors, Ground]:
    """All of it, until `held` is closed. Raises those of CANNOT_START, and ConfigError."""
    claim_descriptors()
    state = private_folder(config.state_dir, choose="--state-dir")
    runtime = private_folder(config.runtime_dir, choose="INFERENCEOSD_RUNTIME_DIR")
    held.enter_context(locked(state))
    held.enter_context(marked_children(mark_of(state)))
    if (own := own_model_dir(config.state_dir)) in config.model_dirs:
        private_folder(own, choose="--model-dir")  # the user's are theirs to make
    private_folder(own_store_dir(config.state_dir), choose="--state-dir")
    passed = manager.passed_sockets()
    lock = DoorLock(config, is_local=are_local(passed) if passed else is_local(config.listen))
    public = passed or listen_on(config.listen)
    for sock in public:
        held.enter_context(sock)
    admin_socket = Path(config.admin_socket)
    admin = held.enter_context(listen_privately(admin_socket))
    held.callback(admin_socket.unlink, missing_ok=True)
    slots = private_folder(os.path.join(config.state_dir, "slots"), choose="--state-dir")
    remove_left_files(slots)
    ground = clear_ground(runtime, held)
    keep_temporary_files_in(ground.run_dir, held)
    kept = replace(ground, preflights=state / "preflights.json", slots=slots)
    return Doors(public, admin, lock), kept
