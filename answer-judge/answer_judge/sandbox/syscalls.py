"""System calls of a confined program, and the BPF program that the kernel checks each of them with.

Each is ``name:x86_64:aarch64``, ``-`` where an architecture does without it. What is in no list fails with EPERM.
"""

import errno
import struct
from functools import partial

ALLOWED = """
read:0:63 write:1:64 futex:202:98 mmap:9:222 munmap:11:215 brk:12:214 close:3:57 fstat:5:80 newfstatat:262:79
stat:4:- lstat:6:- statx:332:291 lseek:8:62 clock_gettime:228:113 getpid:39:172 gettid:186:178
rt_sigaction:13:134 rt_sigprocmask:14:135 rt_sigreturn:15:139 poll:7:- ppoll:271:73 open:2:- openat:257:56
getdents64:217:61 mprotect:10:226 madvise:28:233 mremap:25:216 getrandom:318:278 exit:60:93 exit_group:231:94
readv:19:65 writev:20:66 pread64:17:67 pwrite64:18:68 rt_sigpending:127:136 rt_sigtimedwait:128:137
rt_sigsuspend:130:133 sigaltstack:131:132 restart_syscall:219:128 access:21:- faccessat:269:48
faccessat2:439:439 pipe:22:- pipe2:293:59 select:23:- pselect6:270:72 epoll_create1:291:20 epoll_ctl:233:21
epoll_wait:232:- epoll_pwait:281:22 eventfd2:290:19 sched_yield:24:124 sched_getaffinity:204:123 dup:32:23
dup2:33:- dup3:292:24 nanosleep:35:101 clock_nanosleep:230:115 clock_getres:229:114 gettimeofday:96:169
time:201:- times:100:153 getppid:110:173 getuid:102:174 geteuid:107:175 getgid:104:176 getegid:108:177
getgroups:115:158 getresuid:118:148 getresgid:120:150 getpgrp:111:- getpgid:121:155 getsid:124:156 uname:63:160
flock:73:32 fsync:74:82 fdatasync:75:83 ftruncate:77:46 getdents:78:- getcwd:79:17 chdir:80:49 fchdir:81:50
rename:82:- renameat:264:38 renameat2:316:276 mkdir:83:- mkdirat:258:34 rmdir:84:- creat:85:- unlink:87:-
unlinkat:263:35 link:86:- linkat:265:37 symlink:88:- symlinkat:266:36 readlink:89:- readlinkat:267:78
umask:95:166 fadvise64:221:223 copy_file_range:326:285 sendfile:40:71 statfs:137:43 fstatfs:138:44
getrlimit:97:163 setrlimit:160:164 getrusage:98:165 sysinfo:99:179 set_robust_list:273:99
get_robust_list:274:100 rseq:334:293 set_tid_address:218:96 arch_prctl:158:- membarrier:324:283 getcpu:309:168
setitimer:38:103 getitimer:36:102 alarm:37:- pause:34:- wait4:61:260 waitid:247:95
"""
"""What an interpreter needs for files it may open, memory, time, threads and signals to itself."""

FORBIDDEN = """
fork:57:- vfork:58:- execve:59:221 execveat:322:281 socket:41:198 socketpair:53:199 connect:42:203 bind:49:200
listen:50:201 accept:43:202 accept4:288:242 sendto:44:206 sendmsg:46:211 sendmmsg:307:269 recvfrom:45:207
recvmsg:47:212 recvmmsg:299:243 ptrace:101:117 process_vm_readv:310:270 process_vm_writev:311:271
process_madvise:440:440 pidfd_open:434:434 pidfd_send_signal:424:424 pidfd_getfd:438:438 tkill:200:130
rt_sigqueueinfo:129:138 rt_tgsigqueueinfo:297:240 kcmp:312:272 mount:165:40 umount2:166:39 pivot_root:155:41
chroot:161:51 unshare:272:97 setns:308:268 move_mount:429:429 open_tree:428:428 fsopen:430:430 fsmount:432:432
fsconfig:431:431 fspick:433:433 mount_setattr:442:442 bpf:321:280 perf_event_open:298:241 keyctl:250:219
add_key:248:217 request_key:249:218 io_uring_setup:425:425 io_uring_enter:426:426 io_uring_register:427:427
userfaultfd:323:282 seccomp:317:277 init_module:175:105 finit_module:313:273 delete_module:176:106
kexec_load:246:104 kexec_file_load:320:294 reboot:169:142 swapon:167:224 swapoff:168:225 settimeofday:164:170
clock_settime:227:112 adjtimex:159:171 clock_adjtime:305:266 sethostname:170:161 setdomainname:171:162
setuid:105:146 setgid:106:144 setreuid:113:145 setregid:114:143 setresuid:117:147 setresgid:119:149
setgroups:116:159 setfsuid:122:151 setfsgid:123:152 capset:126:91 iopl:172:- ioperm:173:- personality:135:92
open_by_handle_at:304:265 name_to_handle_at:303:264 shmget:29:194 shmat:30:196 shmctl:31:195 shmdt:67:197
msgget:68:186 msgsnd:69:189 msgrcv:70:188 msgctl:71:187 semget:64:190 semop:65:193 semctl:66:191
semtimedop:220:192 mq_open:240:180 mq_unlink:241:181 quotactl:179:60 acct:163:89 syslog:103:116
fanotify_init:300:262 inotify_init:253:- inotify_init1:294:26 memfd_create:319:279 memfd_secret:447:447
setsid:112:157 setpgid:109:154 landlock_create_ruleset:444:444 landlock_add_rule:445:445
landlock_restrict_self:446:446 vhangup:153:58
"""
"""What ends the program at once: other processes, other programs, the network, privileges, views of the system."""

BY_ARGUMENT = """
clone:56:220 clone3:435:435 kill:62:129 tgkill:234:131 fcntl:72:25 ioctl:16:29 prctl:157:167 prlimit64:302:261
"""
"""What depends on its arguments, see ``bpf_program``."""

ARCHITECTURES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}
"""By machine: the column of its numbers, and what the kernel calls it (AUDIT_ARCH)."""
SIGNED_32 = 0x40000000
"""On x86_64, numbers from here on belong to another calling convention (x32)."""

KILL, ERROR, ALLOW = 0x80000000, 0x00050000, 0x7FFF0000
"""SECCOMP_RET_KILL_PROCESS, SECCOMP_RET_ERRNO (with the error number added), SECCOMP_RET_ALLOW."""
_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
"""BPF: load a word, compare it three ways, return."""
_NUMBER, _ARCH, _ARGUMENTS = 0, 4, 16
"""Offsets in ``struct seccomp_data``."""

CLONE_THREAD = 0x10000
FILE_COMMANDS = (0, 1, 2, 3, 4, 5, 6, 7, 36, 37, 38, 1030, 1032)
"""fcntl: duplicate, flags, locks, size of a pipe; not F_SETOWN, which has the kernel send signals to others."""
DEVICE_COMMANDS = (0x5401, 0x5413, 0x5421, 0x541B, 0x5450, 0x5451)
"""ioctl: is it a terminal, its size, blocking, bytes waiting, close on exec."""
PROCESS_COMMANDS = (3, 15, 16)
"""prctl: is it dumpable, its name."""


def numbers(listed: str, machine: str) -> dict[str, int]:
    """The numbers of a list's calls on a machine, by name."""
    column = ARCHITECTURES[machine][0]
    split = (entry.split(":") for entry in listed.split())
    return {name: int(found[column]) for name, *found in split if found[column] != "-"}


def bpf_program(machine: str, pid: int) -> bytes:
    """The filter of a program with that process id: instructions of ``struct sock_filter``, 8 bytes each.

    ``KeyError``: a machine that is not in ``ARCHITECTURES``.
    """
    code = [_word(_ARCH), _jump(_EQUAL, ARCHITECTURES[machine][1], 1, 0), _give(KILL), _word(_NUMBER)]
    if machine == "x86_64":
        code += [_jump(_AT_LEAST, SIGNED_32, 0, 1), _give(KILL)]
    for listed, verdict in ((ALLOWED, ALLOW), (FORBIDDEN, KILL)):
        for number in numbers(listed, machine).values():
            code += [_jump(_EQUAL, number, 0, 1), _give(verdict)]
    special = numbers(BY_ARGUMENT, machine)
    code += [_jump(_EQUAL, special["clone3"], 0, 1), _give(ERROR + errno.ENOSYS)]  # libc then asks for clone
    code += _if(special["clone"], [_word(_ARGUMENTS), _jump(_ANY_BIT, CLONE_THREAD, 0, 1), _give(ALLOW), _give(KILL)])
    for name in ("kill", "tgkill"):
        code += _if(special[name], [_word(_ARGUMENTS), _jump(_EQUAL, pid, 0, 1), _give(ALLOW), _give(KILL)])
    for name, commands, argument in (
        ("fcntl", FILE_COMMANDS, 1),
        ("ioctl", DEVICE_COMMANDS, 1),
        ("prctl", PROCESS_COMMANDS, 0),
        ("prlimit64", (0, pid), 0),
    ):
        tests = [part for each in commands for part in (_jump(_EQUAL, each, 0, 1), _give(ALLOW))]
        code += _if(special[name], [_word(_ARGUMENTS + 8 * argument), *tests, _give(ERROR + errno.EPERM)])
    return b"".join([*code, _give(ERROR + errno.EPERM)])


def _jump(kind: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    """One instruction, with how many to pass over after a comparison."""
    return struct.pack("=HBBI", kind, if_true, if_false, value)


_word = partial(_jump, _LOAD)
"""Loads the 32 bits at an offset; of an argument the low half, which is all that these calls look at."""
_give = partial(_jump, _RETURN)


def _if(number: int, body: list[bytes]) -> list[bytes]:
    """The body for that call alone; it must return."""
    return [_jump(_EQUAL, number, 0, len(body)), *body]
